"""FjORD on Flower: the only place that imports flwr."""

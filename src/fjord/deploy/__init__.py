"""A trained model in use: latency, width control, width search and export."""

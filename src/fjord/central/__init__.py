"""Training on one place with the data of all clients."""

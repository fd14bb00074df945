"""Federated data: the examples of each client, and a test set."""

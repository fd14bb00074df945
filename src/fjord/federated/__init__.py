"""Federated training: methods, allocation, aggregation and the round loop (Algorithm 1)."""

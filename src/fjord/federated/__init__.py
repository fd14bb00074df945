"""Federated training: methods, allocation, aggregation, validation and the round loop (Algorithm 1)."""

"""Federated data: the examples of each client, and a test set.

One file a dataset, with a function `load(source, seed, *, options) -> FederatedData`. To add one,
copy `cifar10.py`, the smallest.
"""

"""Devices: how much of the model each client can carry."""

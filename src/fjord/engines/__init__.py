"""Engines: where clients train. All give the same weights for the same seed."""

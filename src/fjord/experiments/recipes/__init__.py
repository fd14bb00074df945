"""Recipes: each runs one experiment into a run folder; its docstring says what the paper says."""

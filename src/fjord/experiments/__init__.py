"""Experiments as values, recipes that make them, and what runs them into run folders."""

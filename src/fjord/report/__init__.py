"""Figures, made from run folders alone."""

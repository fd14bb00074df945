"""Objectives, optimizers, training loops and scores, for one model on one machine."""

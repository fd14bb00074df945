"""Benchmarks: ratios within one run, against what users would pick instead."""

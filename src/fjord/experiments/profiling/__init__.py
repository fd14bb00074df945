"""Profiling: what training costs at each width, measured on this device."""

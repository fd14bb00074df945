"""A trained model in use: latency at each width, a width that follows the load, and widths layer by layer."""

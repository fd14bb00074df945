"""What every room uses: widths, named randomness, errors, units, files and memory."""

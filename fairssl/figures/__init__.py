"""Figures from stored runs, as PNG and PDF; nothing is trained. Needs matplotlib: the extra `plot`."""

"""Formats of old checkpoints, with one module per format; `format_detection.py` lists them."""

"""The formats of old checkpoints, a module each; `format_detection.py` lists them."""

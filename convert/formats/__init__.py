"""The formats of old checkpoints, a module each; `FORMATS` in `conversion.py` lists them."""

"""The formats of old checkpoints, a module each; `FORMATS` in `convert/conversion.py` lists them."""

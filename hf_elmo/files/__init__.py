"""Files on a disk: atomic writes, safetensors headers."""

"""Files on a disk: atomic writes, locks, safetensors headers."""

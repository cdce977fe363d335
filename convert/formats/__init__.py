"""The formats of old checkpoints, a module each."""

"""Data of the task models: file formats, labels, metrics."""

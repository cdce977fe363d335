"""Layers of the task models."""

"""Sentences read from files, datasets and spaCy documents."""

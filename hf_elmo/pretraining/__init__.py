"""Pretraining of a biLM: model, training loop, command."""

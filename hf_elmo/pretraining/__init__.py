"""Pretraining of a biLM: a model to train, and the training loop."""

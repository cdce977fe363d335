"""Pretraining of a biLM: streams of text, losses, training, evaluation."""

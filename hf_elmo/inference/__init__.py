"""Inference with a biLM: which engine computes."""

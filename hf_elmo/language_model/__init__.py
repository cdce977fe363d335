"""The biLM as a language model: windows, losses, target words, perplexity, scores."""

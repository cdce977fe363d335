"""Language modelling with the biLM: windows, losses, target words, perplexity, scores."""

"""Convert old ELMo checkpoints to the Hugging Face layout and back."""

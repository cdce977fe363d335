"""ELMo as a spaCy component."""

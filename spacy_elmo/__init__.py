"""ELMo in spaCy: components and architectures, which spaCy finds by entry points."""

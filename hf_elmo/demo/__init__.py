"""A page that shows what a biLM does, computed when it is asked for."""

"""Many sentences in, vectors out."""

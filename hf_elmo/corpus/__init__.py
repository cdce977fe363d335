"""Many sentences in, vectors out."""

from .sentence_embedder import SentenceEmbedder

__all__ = ["SentenceEmbedder"]

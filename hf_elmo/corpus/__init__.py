"""Vectors of large corpora: `python -m hf_elmo embed`."""

from .sentence_embedder import SentenceEmbedder

__all__ = ["SentenceEmbedder"]

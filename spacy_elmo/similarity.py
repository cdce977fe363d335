"""Opt-in contextual similarity; by default, spaCy's similarity of equal words is 1."""

import math
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc, Span, Token
from thinc.util import to_numpy

from .architecture import Array
from .extensions import get_mean_vector, get_token_vector


@Language.component("elmo_similarity")
def add_similarity_hooks(doc: Doc) -> Doc:
    """Let `similarity` of a doc, its spans and its tokens compare ELMo's vectors.

    Without this, both "bank"s of "the river bank by the bank" have a similarity of 1. The `elmo`
    component must have processed the doc. spaCy neither stores hooks nor passes them between
    processes. So call this function for docs from `nlp.pipe(n_process=2)` or from disk.
    """
    for hooks in (doc.user_hooks, doc.user_span_hooks, doc.user_token_hooks):
        hooks["similarity"] = measure_similarity
    return doc


def measure_similarity(one: Doc | Span | Token, other: Doc | Span | Token) -> float:
    """Return the cosine of two contextual vectors; 0 if one of them is zero.

    The vector of a doc or span is the mean over its words.

    Raises:
        TypeError: If `other` is a lexeme, which has no context.
    """
    if not isinstance(other, Doc | Span | Token):
        raise TypeError(
            f"Expected a doc, span or token to compare with, got a {type(other).__name__}: "
            "a word without a sentence has no contextual vector."
        )
    convert: Any = to_numpy  # a vector of a stored doc is not on the GPU
    # In float64, because squares can be too large for float16 or float32.
    a, b = (convert(_get_vector(piece)).astype("float64") for piece in (one, other))
    norm = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / norm if norm else 0.0


def _get_vector(piece: Doc | Span | Token) -> Array:
    return get_token_vector(piece) if isinstance(piece, Token) else get_mean_vector(piece)

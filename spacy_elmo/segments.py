"""Split a doc into sentences for the biLM."""

from typing import Literal, TypeAlias

import numpy as np
from spacy.tokens import Doc

SegmentBy: TypeAlias = Literal["auto", "sents", "doc"]
Segment: TypeAlias = list[int]  # positions in the doc of the words of one sentence


def find_segments(doc: Doc, segment: SegmentBy, max_length: int | None) -> list[Segment]:
    """Find the sentences of a doc, without white-space tokens.

    For this reason, extra whitespace does not change the vectors.

    Args:
        doc: Any doc; it can be empty.
        segment: `"sents"` = the doc's sentences; `"doc"` = one sentence; `"auto"` = its sentences
            if they are set, else one sentence.
        max_length: Maximum number of words; longer sentences are split. None = never split.

    Returns:
        The positions of the words of each sentence that has words.

    Raises:
        ValueError: If `segment = "sents"` and the doc has no sentences.
    """
    has_sents = doc.has_annotation("SENT_START")
    if segment == "sents" and not has_sents:
        raise ValueError(
            "Expected a doc with sentence boundaries, since segment = 'sents', got one without. "
            "Put a 'sentencizer', 'senter' or 'parser' before 'elmo' (and, for training, name it "
            "in [training] annotating_components), or set segment to 'auto' or 'doc'."
        )
    spans = doc.sents if has_sents and segment != "doc" else [doc[:]]
    words = np.flatnonzero(doc.to_array("IS_SPACE") == 0)
    edges = np.array([(span.start, span.end) for span in spans]).reshape(-1, 2)
    segments = (words[start:end].tolist() for start, end in np.searchsorted(words, edges))
    return [
        rows[start : start + (max_length or len(rows))]
        for rows in segments
        for start in range(0, len(rows), max_length or len(rows) or 1)
    ]

"""Which tokens of a doc make up each sentence that the biLM reads."""

from typing import Literal, TypeAlias

import numpy as np
from spacy.tokens import Doc

SegmentBy: TypeAlias = Literal["auto", "sents", "doc"]
Segment: TypeAlias = list[int]  # positions in the doc of the words of one sentence


def find_segments(doc: Doc, segment: SegmentBy, max_length: int | None) -> list[Segment]:
    """Find the sentences of a doc, without the white-space tokens.

    White space is no word to the biLM: a sentence's vectors are those of its clean text.

    Args:
        doc: Any doc, an empty one included.
        segment: `"sents"`: the doc's sentences; `"doc"`: the doc is one sentence, however long;
            `"auto"`: its sentences where something has set them, else the whole.
        max_length: Words after which a longer sentence is cut, so that its parts are sentences of
            their own; None = never.

    Returns:
        The positions of each sentence's words; sentences without any word are left out.

    Raises:
        ValueError: If sentences are asked for that nothing has set.
    """
    has_sents = "sents" in doc.user_hooks or doc.has_annotation("SENT_START")
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

"""Spans as labels of words."""

import pytest

from hf_elmo.tasks.labels import (
    Scheme,
    Span,
    find_spans,
    label_words,
)

SPANS = [Span("A", 0, 0), Span("A", 1, 3), Span("B", 5, 6)]
WRITTEN: dict[Scheme, str] = {
    "BIO": "B-A B-A I-A I-A O B-B I-B",
    "BIOUL": "U-A B-A I-A L-A O B-B L-B",
}


@pytest.mark.parametrize("scheme", WRITTEN)
def test_spans_are_written_in_a_scheme(scheme: Scheme) -> None:
    assert label_words(SPANS, 7, scheme) == WRITTEN[scheme].split()


@pytest.mark.parametrize("scheme", WRITTEN)
def test_spans_are_read_from_a_scheme(scheme: Scheme) -> None:
    assert find_spans(WRITTEN[scheme].split()) == SPANS


def test_an_inside_without_a_beginning_begins() -> None:
    spans = find_spans(["I-A", "I-B", "L-B", "O", "L-A", "I-A"])
    assert spans == [Span("A", 0, 0), Span("B", 1, 2), Span("A", 4, 4), Span("A", 5, 5)]


def test_an_overlap_is_refused() -> None:
    with pytest.raises(ValueError, match="do not overlap, got a second one at 3 to 4"):
        label_words([Span("A", 1, 3), Span("B", 3, 4)], 7, "BIO")


def test_a_span_beyond_the_sentence_is_refused() -> None:
    with pytest.raises(ValueError, match="inside 3 words, got 2 to 3"):
        label_words([Span("A", 2, 3)], 3, "BIO")

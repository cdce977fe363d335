"""Spans as labels of words."""

import itertools

import pytest

from hf_elmo.tasks.data.labels import (
    Scheme,
    Span,
    constrain_labels,
    find_spans,
    label_words,
    list_labels,
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


@pytest.mark.parametrize("scheme", WRITTEN)
def test_the_constraints_allow_what_spans_can_be_and_nothing_else(scheme: Scheme) -> None:
    labels = list_labels(["A", "B"], scheme)
    allowed = constrain_labels(labels)
    for path in itertools.product(range(len(labels)), repeat=3):
        written = [labels[number] for number in path]
        is_right = label_words(find_spans(written), 3, scheme) == written
        is_allowed = all(allowed[pair] for pair in itertools.pairwise((0, *path, 0)))
        assert is_allowed == is_right, written

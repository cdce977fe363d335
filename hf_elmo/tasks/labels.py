"""Conversion between spans and labels of words (BIO, BIOUL)."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from torch import Tensor

from .layers.crf import constrain_labels, find_best_paths

Scheme: TypeAlias = Literal["BIO", "BIOUL"]

OUTSIDE = "O"
PREDICATE = "V"  # label of the predicate itself, in PropBank


class Span(NamedTuple):
    """A labelled span of words in a sentence.

    Attributes:
        label: The label.
        start: Index of the first word.
        end: Index of the last word (inclusive).
    """

    label: str
    start: int
    end: int


def list_labels(names: Iterable[str], scheme: Scheme) -> list[str]:
    """List the word labels for span labels: `O`, then the labels of each name, names sorted."""
    prefixes = "BI" if scheme == "BIO" else "BIUL"
    return [OUTSIDE, *(f"{prefix}-{name}" for name in sorted(set(names)) for prefix in prefixes)]


def label_words(spans: Iterable[Span], num_words: int, scheme: Scheme) -> list[str]:
    """Convert spans to a label for each word.

    Args:
        spans: Spans that do not overlap.
        num_words: Number of words in the sentence.
        scheme: `BIO` (begin, inside, outside) or `BIOUL` (also unit and last).

    Raises:
        ValueError: If a span reaches beyond the sentence or overlaps another.
    """
    labels = [OUTSIDE] * num_words
    for label, start, end in spans:
        if not 0 <= start <= end < num_words:
            raise ValueError(f"Expected a span inside {num_words} words, got {start} to {end}.")
        if labels[start : end + 1] != [OUTSIDE] * (end + 1 - start):
            raise ValueError(
                f"Expected spans that do not overlap, got a second one at {start} to {end}."
            )
        labels[start : end + 1] = [f"I-{label}"] * (end + 1 - start)
        labels[start] = f"B-{label}"
        if scheme == "BIOUL":
            labels[end] = f"{'U' if start == end else 'L'}-{label}"
    return labels


def find_spans(labels: Sequence[str]) -> list[Span]:
    """Read spans from labels of words, BIO or BIOUL.

    Invalid sequences are read as in the usual scorers: a span ends where its label changes, and an
    `I` or `L` outside a span starts a span.

    Args:
        labels: A label for each word.
    """
    spans: list[Span] = []
    is_open = False
    for place, label in enumerate(labels):
        prefix, _, name = label.partition("-")
        if prefix == OUTSIDE:
            is_open = False
            continue
        if is_open and prefix in "IL" and spans[-1].label == name:
            spans[-1] = spans[-1]._replace(end=place)
        else:
            spans.append(Span(name, place, place))
        is_open = prefix in "BI"
    return spans


def decode_spans(
    scores: Tensor, mask: Tensor, labels: Sequence[str], transitions: Tensor | None = None
) -> list[list[Span]]:
    """Find the best spans of each sentence, in the order of its words.

    Args:
        scores: Score of each label of each word, shape `(batch, tokens, labels)`.
        mask: 1 at words, shape `(batch, tokens)`.
        labels: All labels, as `list_labels` lists them.
        transitions: Scores of pairs of successive labels, shape `(labels, labels)`; None = 0.
    """
    if transitions is None:
        transitions = scores.new_zeros(len(labels), len(labels))
    paths = find_best_paths(
        scores.cpu(),
        mask.bool().cpu(),
        transitions=transitions.detach().cpu(),
        allowed=constrain_labels(labels),
    )
    return [find_spans([labels[row] for row in path]) for path in paths]

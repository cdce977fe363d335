"""Batches of sentences of similar length, with limited memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from .exact_windows import NUM_BOUNDARIES

MAX_BATCH_TOKENS = 2048  # time steps per forward pass
LOOK_AHEAD = 8  # batches that are read in advance and sorted by length
# Matrix products with fewer rows are inefficient. So a batch has at least this many sentences, even
# if they exceed the budget: they then run in windows, which takes about 1.5 times as long.
MIN_ROWS = 16

Sentence = TypeVar("Sentence", bound=Sequence[Any])


def group_sentences(
    sentences: Iterable[Sentence], look_ahead: int, count: Callable[[Sentence], int] = len
) -> Iterator[list[Sentence]]:
    """Group sentences with at most `look_ahead` words in total; a longer one is its own group."""
    group: list[Sentence] = []
    num_words = 0
    for words in sentences:
        size = count(words) + NUM_BOUNDARIES
        if group and num_words + size > look_ahead:
            yield group
            group, num_words = [], 0
        group.append(words)
        num_words += size
    if group:
        yield group


def take_batch(lengths: Sequence[int], max_batch_tokens: int) -> int:
    """Return how many of the next sentences, longest first, are a batch.

    It has at most `max_batch_tokens` time steps, but at least `MIN_ROWS` sentences.
    """
    steps = 0
    for count, length in enumerate(lengths):
        steps += length + NUM_BOUNDARIES
        if steps > max_batch_tokens and count >= MIN_ROWS:
            return count
    return len(lengths)

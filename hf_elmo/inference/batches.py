"""Batches of sentences of similar length, with limited memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from .exact_windows import NUM_BOUNDARIES

MAX_BATCH_TOKENS = 2048  # time steps per forward pass
LOOK_AHEAD = 8  # batches that are read in advance and sorted by length
# Matrix products with fewer rows are inefficient, so a batch has at least this many sentences. If
# the batch then exceeds the budget, it runs in windows, which takes about 1.5 times as long.
MIN_ROWS = 16

Sentence = TypeVar("Sentence", bound=Sequence[Any])


def group_sentences(
    sentences: Iterable[Sentence], look_ahead: int, count: Callable[[Sentence], int] = len
) -> Iterator[list[Sentence]]:
    """Group sentences, up to `look_ahead` time steps; a longer sentence is its own group."""
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


def batch_by_length(lengths: Sequence[int], max_batch_tokens: int) -> Iterator[list[int]]:
    """Put sentences of similar length in batches, the longest first.

    A batch has at most `max_batch_tokens` time steps, but at least `MIN_ROWS` sentences; the last
    batch can have fewer.

    Args:
        lengths: Number of words of each sentence.
        max_batch_tokens: Limit of time steps per batch, sentence boundaries included.

    Returns:
        An iterator of batches: the positions of the sentences in `lengths`.
    """
    batch: list[int] = []
    num_steps = 0
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        num_steps += lengths[place] + NUM_BOUNDARIES
        if num_steps > max_batch_tokens and len(batch) >= MIN_ROWS:
            yield batch
            batch, num_steps = [], lengths[place] + NUM_BOUNDARIES
        batch.append(place)
    if batch:
        yield batch

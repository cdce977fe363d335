"""Shuffle the sentences of large files while they are read."""

import random
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

# Number of files that a shuffled pass reads at the same time: more files mix the text better. An
# open `.xz` file needs up to 64 MB of memory.
OPEN_FILES = 32
BUFFER_SIZE = 65_536  # number of sentences that a shuffled pass holds in memory


def interleave(
    readers: Sequence[Callable[[], Iterator[Any]]], sizes: Sequence[float], rng: random.Random
) -> Iterator[Any]:
    """Yield the sentences of all files, each from a random open file.

    The probability of a file is proportional to its size, so that the mixture of sources stays the
    same during a pass.
    """
    waiting = list(zip(readers, sizes, strict=True))
    rng.shuffle(waiting)
    opened = [(read(), size) for read, size in waiting[:OPEN_FILES]]
    del waiting[:OPEN_FILES]
    bounds = list(accumulate(size for _, size in opened))
    while opened:
        number = bisect(bounds, rng.random() * bounds[-1], hi=len(bounds) - 1)
        sentence = next(opened[number][0], None)
        if sentence is not None:
            yield sentence
            continue
        if waiting:
            read, size = waiting.pop()
            opened[number] = read(), size
        else:
            del opened[number]
        bounds = list(accumulate(size for _, size in opened))


def shuffle(sentences: Iterable[Any], rng: random.Random) -> Iterator[Any]:
    """Yield all sentences in an order randomised by a buffer of `BUFFER_SIZE` sentences."""
    buffer: list[Any] = []
    for sentence in sentences:
        if len(buffer) < BUFFER_SIZE:
            buffer.append(sentence)
            continue
        number = int(rng.random() * BUFFER_SIZE)
        yield buffer[number]
        buffer[number] = sentence
    rng.shuffle(buffer)
    yield from buffer

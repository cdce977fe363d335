"""Sentences of text files: any number of files, plain or compressed, read line by line."""

import bz2
import glob
import gzip
import lzma
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

OPEN_FILES = 8  # files that a shuffled pass reads from at once
BUFFER_SIZE = 65_536  # sentences that a shuffled pass holds in memory


def open_text(path: Path) -> IO[str]:
    """Open a UTF-8 text file; `.gz`, `.xz`, `.bz2` and `.zst` are decompressed while read."""
    openers: dict[str, Callable[..., IO[str]]] = {
        ".gz": gzip.open,  # type: ignore[dict-item]  # overloads: text mode is asked for below
        ".xz": lzma.open,  # type: ignore[dict-item]  # the same
        ".bz2": bz2.open,  # type: ignore[dict-item]  # the same
        ".zst": _open_zstandard,
    }
    return openers.get(path.suffix, open)(path, "rt", encoding="utf-8", newline="\n")


def _open_zstandard(path: Path, mode: str, **options: str) -> IO[str]:
    try:
        import zstandard
    except ImportError as error:
        raise ImportError(
            f"Reading {path} needs the package zstandard: pip install 'spacy-elmo[train]'."
        ) from error
    stream: IO[str] = zstandard.open(path, mode, **options)
    return stream


def find_files(patterns: Iterable[str | Path]) -> list[Path]:
    """Expand files, folders' patterns such as `text/*.txt.gz`, in the order given.

    Raises:
        FileNotFoundError: If a pattern matches no file.
    """
    files: list[Path] = []
    for pattern in map(str, patterns):
        found = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]
        found = [path for path in found if path.is_file()]
        if not found:
            raise FileNotFoundError(f"Expected text files, one sentence a line; none at {pattern}.")
        files += found
    return list(dict.fromkeys(files))


def read_lines(files: Sequence[Path], rng: random.Random | None = None) -> Iterator[str]:
    """Yield every line of the files that is not blank.

    Args:
        files: One sentence a line, words separated by spaces.
        rng: Source of a shuffled order: lines come from `OPEN_FILES` files at once, through a
            buffer of `BUFFER_SIZE` lines. None = the order of the files.
    """
    if rng is None:
        for path in files:
            with open_text(path) as lines:
                yield from (line for line in lines if not line.isspace())
    else:
        yield from shuffle_lines(_interleave(files, rng), rng)


def _interleave(files: Sequence[Path], rng: random.Random) -> Iterator[str]:
    waiting = list(files)
    rng.shuffle(waiting)
    readers = [read_lines([path]) for path in waiting[:OPEN_FILES]]
    del waiting[:OPEN_FILES]
    while readers:
        place = int(rng.random() * len(readers))
        line = next(readers[place], None)
        if line is not None:
            yield line
        elif waiting:
            readers[place] = read_lines([waiting.pop()])
        else:
            del readers[place]


def shuffle_lines(lines: Iterable[str], rng: random.Random) -> Iterator[str]:
    """Yield all lines, each a random one of the `BUFFER_SIZE` that came next."""
    buffer: list[str] = []
    for line in lines:
        if len(buffer) < BUFFER_SIZE:
            buffer.append(line)
            continue
        place = int(rng.random() * BUFFER_SIZE)
        yield buffer[place]
        buffer[place] = line
    rng.shuffle(buffer)
    yield from buffer

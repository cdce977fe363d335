"""Sentences of text files or of a `datasets` dataset, read line by line, never held whole."""

import bz2
import glob
import gzip
import lzma
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

InputFormat: TypeAlias = Literal["text", "raw", "conllu"]

# Given a source of chance, yields all sentences of a text in a shuffled order; given None, in the
# text's own. A sentence is its words.
Text: TypeAlias = Callable[[random.Random | None], Iterator[list[str]]]

NUM_CONLLU_COLUMNS = 10
OPEN_FILES = 8  # files that a shuffled pass reads from at once
BUFFER_SIZE = 65_536  # sentences that a shuffled pass holds in memory


def read_files(patterns: Iterable[str | Path]) -> Text:
    """Read files of one sentence a line, words separated by white space.

    A shuffled pass takes lines from `OPEN_FILES` files at once, through a buffer of `BUFFER_SIZE`
    sentences. Blank lines are skipped.

    Args:
        patterns: Files, or patterns such as `text/*.txt.gz`; `.gz`, `.bz2`, `.xz` and `.zst` are
            decompressed while they are read.

    Returns:
        The text, to be read as often as one likes.

    Raises:
        FileNotFoundError: If a pattern matches no file.
    """
    files = _find_files(patterns)

    def read(rng: random.Random | None) -> Iterator[list[str]]:
        if rng is None:
            return map(str.split, _read_lines(files))
        return map(str.split, shuffle(_interleave(files, rng), rng))

    return read


def read_dataset(dataset: Iterable[dict[str, Any]], column: str = "text") -> Text:
    """Read a dataset of the `datasets` package, streamed or not, one or more lines an example.

    Args:
        dataset: Examples, to be iterated over as often as one likes.
        column: Where an example holds its text, one sentence a line.

    Returns:
        The text. A shuffled pass goes through a buffer of `BUFFER_SIZE` sentences.

    Raises:
        KeyError: If an example has no such column.
    """

    def read_lines() -> Iterator[str]:
        for example in dataset:
            if column not in example:
                raise KeyError(f"Expected a column {column!r} of text, got {', '.join(example)}.")
            yield from (line for line in str(example[column]).split("\n") if line.strip())

    def read(rng: random.Random | None) -> Iterator[list[str]]:
        return map(str.split, read_lines() if rng is None else shuffle(read_lines(), rng))

    return read


def _find_files(patterns: Iterable[str | Path]) -> list[Path]:
    files: list[Path] = []
    for pattern in map(str, patterns):
        found = [Path(name) for name in sorted(glob.glob(pattern))]  # noqa: PTH207 (any folder)
        found = [path for path in found if path.is_file()]
        if not found:
            raise FileNotFoundError(f"Expected text files, one sentence a line; none at {pattern}.")
        files += found
    return list(dict.fromkeys(files))


def _open_text(path: Path) -> IO[str]:
    if path.suffix == ".zst":
        return _open_zstandard(path)
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    stream: IO[str] = openers.get(path.suffix, open)(path, "rt", encoding="utf-8", newline="\n")
    return stream


def _open_zstandard(path: Path) -> IO[str]:
    try:
        import zstandard
    except ImportError as error:
        raise ImportError(
            f"Reading {path} needs the package zstandard: pip install 'spacy-elmo[train]'."
        ) from error
    stream: IO[str] = zstandard.open(path, "rt", encoding="utf-8", newline="\n")
    return stream


def _read_lines(files: Sequence[Path]) -> Iterator[str]:
    for path in files:
        with _open_text(path) as lines:
            try:
                yield from (line for line in lines if not line.isspace())
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"Expected UTF-8 text in {path}, got: {error}. Convert it first, with iconv."
                ) from error


def _interleave(files: Sequence[Path], rng: random.Random) -> Iterator[str]:
    """Yield the lines of all files, each from a random one of those that are open."""
    waiting = list(files)
    rng.shuffle(waiting)
    readers = [_read_lines([path]) for path in waiting[:OPEN_FILES]]
    del waiting[:OPEN_FILES]
    while readers:
        place = int(rng.random() * len(readers))
        line = next(readers[place], None)
        if line is not None:
            yield line
        elif waiting:
            readers[place] = _read_lines([waiting.pop()])
        else:
            del readers[place]


def shuffle(lines: Iterable[str], rng: random.Random) -> Iterator[str]:
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


def read_sentences(
    stream: Iterable[bytes], input_format: InputFormat, pipeline: str = "en"
) -> Iterator[list[str]]:
    """Read the sentences of a text.

    Args:
        stream: Lines, each with its end.
        input_format: As in `Settings`.
        pipeline: spaCy language or pipeline that cuts raw text.

    Returns:
        An iterator of sentences. An empty line of `"text"` is an empty sentence.

    Raises:
        ValueError: If a line is not UTF-8, or not what the format asks for.
    """
    lines = _decode(stream)
    if input_format == "conllu":
        return _read_conllu(lines)
    if input_format == "raw":
        return _read_raw(lines, pipeline)
    return (line.split() for line in lines)


def _decode(stream: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"Line {number} is not UTF-8: byte {line[error.start]:#04x} in column "
                f"{error.start + 1}. Convert the text first, as with iconv -f latin1 -t utf-8."
            ) from error
        yield text.removeprefix("\ufeff") if number == 1 else text


def _read_conllu(lines: Iterable[str]) -> Iterator[list[str]]:
    """Read the forms of the syntactic words: no ranges (3-4), no empty nodes (3.1)."""
    words: list[str] = []
    for number, line in enumerate(lines, start=1):
        if line.startswith("#"):
            continue
        columns = line.rstrip("\r\n").split("\t")
        if not line.strip():
            if words:
                yield words
            words = []
        elif len(columns) != NUM_CONLLU_COLUMNS:
            raise ValueError(
                f"Line {number} is not CoNLL-U: expected {NUM_CONLLU_COLUMNS} columns between "
                f"tabs, got {len(columns)}."
            )
        elif columns[0].isdigit():
            words.append(columns[1])
    if words:
        yield words


def _read_raw(lines: Iterable[str], pipeline: str) -> Iterator[list[str]]:
    """Cut each line into sentences and words with spaCy; white space is no word."""
    import spacy

    if spacy.util.is_package(pipeline) or Path(pipeline).exists():
        nlp = spacy.load(pipeline)
    else:
        try:
            nlp = spacy.blank(pipeline)
        except ImportError as error:
            raise ValueError(
                f"Expected a spaCy language or pipeline, got {pipeline!r}. To install one, see "
                "python -m spacy download."
            ) from error
        nlp.add_pipe("sentencizer")
        nlp.max_length = sys.maxsize  # the bound is for parsers
    for doc in nlp.pipe(text for text in map(str.strip, lines) if text):
        for sentence in doc.sents if doc.has_annotation("SENT_START") else [doc[:]]:
            yield [token.text for token in sentence if not token.is_space]

"""Read text as a stream of sentences: tokenised lines, CoNLL-U or raw text."""

import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, get_args

from .shuffling import interleave, shuffle
from .text_files import (
    check_text_names,
    decode_lines,
    decompress,
    measure_file,
    open_file,
    weigh_files,
)

InputFormat: TypeAlias = Literal["text", "raw", "conllu"]
# Function that yields all sentences of a text, each a list of words: shuffled with the given random
# generator, or in order if the generator is None.
SentenceReader: TypeAlias = Callable[[random.Random | None], Iterator[list[str]]]

NUM_CONLLU_COLUMNS = 10
OTHER_IDS = re.compile(r"\d+[-.]\d+")  # of ranges of words, and of empty nodes
LINES_AT_ONCE = 1000  # lines of raw text given to spaCy at once


def read_files(
    patterns: Iterable[str | Path],
    input_format: InputFormat = "text",
    pipeline: str = "en",
    *,
    has_weights: bool = False,
    leave_out: Callable[[str], bool] | None = None,
) -> SentenceReader:
    """Make a reader: a function that yields the sentences of text files.

    A shuffled pass reads several files at the same time, from large files more often, and shuffles
    in a buffer (see `shuffling`). Empty sentences are skipped.

    Args:
        patterns: Files, patterns such as `text/*.txt.gz`, or addresses such as `s3://bucket/*.gz`;
            `.gz`, `.bz2`, `.xz` and `.zst` are decompressed.
        input_format: As for `read_sentences`.
        pipeline: As for `read_sentences`.
        has_weights: Whether a pattern can have a weight, such as `old/*.txt=0.5`: the number of
            times that a pass reads these files. A fraction selects a random share of the sentences.
        leave_out: Function that returns whether to leave out a file that a pattern matches.

    Returns:
        The reader, which can be called repeatedly. A file that has several names, or that several
        patterns match, is read once.

    Raises:
        FileNotFoundError: If a pattern matches no file.
        ValueError: If a weight is not above 0 and finite, a file has two weights, its name is that
            of a dataset, but the format is text, or the format is unknown.
    """
    _check_format(input_format)
    weights = weigh_files(patterns, has_weights, leave_out)
    if input_format == "text":
        check_text_names(weights)
    shares = [(file, share) for file, weight in weights.items() for share in _split(weight)]

    def read_file(file: str) -> Iterator[Any]:
        with open_file(file) as stream:
            lines = _check_lines(decode_lines(decompress(stream, file), file), file)
            if input_format == "text":  # split into words late, to save memory
                yield from (line for line in lines if line.strip())
            else:
                yield from filter(None, _cut(lines, input_format, pipeline, file))

    def read(rng: random.Random | None) -> Iterator[list[str]]:
        chance = rng or random.Random(0)
        readers = [partial(_take, partial(read_file, file), s, chance) for file, s in shares]
        sentences: Iterator[Any] = chain.from_iterable(reader() for reader in readers)
        if rng is not None:
            sizes = [share * max(measure_file(file), 1) for file, share in shares]
            sentences = shuffle(interleave(readers, sizes, rng), rng)
        return map(str.split, sentences) if input_format == "text" else sentences

    return read


def read_dataset(
    dataset: Iterable[dict[str, Any]],
    column: str = "text",
    input_format: InputFormat = "text",
    pipeline: str = "en",
) -> SentenceReader:
    """Make a reader, as `read_files` does, for a dataset of the `datasets` package.

    Args:
        dataset: Examples, streamed or not; every pass iterates over them again.
        column: Column with text, or with the list of words of one sentence.
        input_format: Format of the text, as for `read_sentences`.
        pipeline: As for `read_sentences`.

    Returns:
        The reader. A shuffled pass shuffles in a buffer. Examples without text are skipped.

    Raises:
        ValueError: If an example lacks the column, the column contains something else, or a NUL,
            or the format is unknown.
    """
    _check_format(input_format)
    is_text, name = input_format == "text", f"column {column!r}"

    def read_examples() -> Iterator[Any]:
        for example in dataset:
            if column not in example:
                raise ValueError(f"Expected a column {column!r} of text, got {', '.join(example)}.")
            value = example[column]
            if isinstance(value, str):
                lines = _check_lines(value.removeprefix("\ufeff").split("\n"), name)
                # As for files, text is split into words late.
                yield from lines if is_text else _cut(lines, input_format, pipeline, name)
            elif isinstance(value, list) and all(isinstance(word, str) for word in value):
                yield value
            elif value is not None:
                raise ValueError(f"Expected text or words in {name}, got {value!r:.60}.")

    def read(rng: random.Random | None) -> Iterator[list[str]]:
        sentences = read_examples() if rng is None else shuffle(read_examples(), rng)
        cut = (x.split() if isinstance(x, str) else x for x in sentences)
        return (words for words in cut if words)

    return read


def read_sentences(
    stream: BinaryIO, input_format: InputFormat, pipeline: str = "en", name: str = "the text"
) -> Iterator[list[str]]:
    """Read the sentences of one text in order.

    Args:
        stream: UTF-8 bytes, not compressed.
        input_format: `"text"`: one tokenised sentence per line, words separated by whitespace;
            `"raw"`: raw text, split by spaCy; `"conllu"`: CoNLL-U.
        pipeline: spaCy language or pipeline for raw text.
        name: Name of the text, for errors.

    Returns:
        An iterator of sentences. An empty line of `"text"` is an empty sentence.

    Raises:
        ValueError: If a line is not UTF-8, or does not have the format, or the format is unknown.
    """
    _check_format(input_format)
    lines = _check_lines(decode_lines(stream, name), name)
    return _cut(lines, input_format, pipeline, name)


def _check_format(name: str) -> None:
    formats = get_args(InputFormat)
    if name not in formats:
        raise ValueError(f"Expected one of the formats {', '.join(formats)}, got {name!r}.")


def _split(weight: float) -> list[float]:
    """Split a weight into 1.0 for each complete pass over a file, and the remaining share."""
    rest = weight % 1
    return [1.0] * int(weight) + [rest] * (rest > 0)


def _take(read: Callable[[], Iterator[Any]], share: float, rng: random.Random) -> Iterator[Any]:
    """Yield a random share of the sentences of a file."""
    if share == 1:
        return read()
    return (sentence for sentence in read() if rng.random() < share)


def _cut(
    lines: Iterator[str], input_format: InputFormat, pipeline: str, name: str
) -> Iterator[list[str]]:
    if input_format == "conllu":
        return _read_conllu(lines, name)
    if input_format == "raw":
        return _read_raw(lines, pipeline)
    return map(str.split, lines)


def _check_lines(lines: Iterable[str], name: str) -> Iterator[str]:
    """Refuse NULs, as in UTF-16 without a mark."""
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            raise ValueError(
                f"Expected text in {name}, got a NUL in line {number}. If the file is UTF-16, "
                "convert it first, for example with iconv -f utf-16le -t utf-8."
            )
        yield line


def _read_conllu(lines: Iterable[str], name: str) -> Iterator[list[str]]:
    """Yield sentences: the forms of syntactic words, without ranges (3-4) and empty nodes (3.1)."""
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
                f"Line {number} of {name} is not CoNLL-U: expected {NUM_CONLLU_COLUMNS} columns "
                f"between tabs, got {len(columns)}."
            )
        elif columns[0] == str(len(words) + 1):
            words.append(columns[1])
        elif not OTHER_IDS.fullmatch(columns[0]):
            raise ValueError(
                f"Line {number} of {name} is not CoNLL-U: expected the id {len(words) + 1} of the "
                f"next word, a range such as 3-4 or an empty node such as 3.1, got {columns[0]!r}. "
                "An empty line ends a sentence."
            )
    if words:
        yield words


def _read_raw(lines: Iterable[str], pipeline: str) -> Iterator[list[str]]:
    """Split each line into sentences and words with spaCy; skip whitespace."""
    nlp = _load_pipeline(pipeline)
    texts = (text for text in map(str.strip, lines) if text)
    while block := list(islice(texts, LINES_AT_ONCE)):
        with nlp.memory_zone():  # else its vocab keeps each distinct word of the text
            sentences = [
                [token.text for token in sentence if not token.is_space]
                for doc in nlp.pipe(block)
                for sentence in (doc.sents if doc.has_annotation("SENT_START") else [doc[:]])
            ]
        yield from sentences


@lru_cache(maxsize=1)
def _load_pipeline(name: str) -> Any:
    """Load the spaCy pipeline for raw text, once for all files."""
    import spacy

    if spacy.util.is_package(name) or Path(name, "meta.json").exists():
        nlp = spacy.load(name)
    else:
        try:
            nlp = spacy.blank(name)
        except ImportError as error:
            raise ValueError(
                f"Expected a spaCy language or pipeline, got {name!r}. To install one, see "
                f"python -m spacy download. spaCy's error: {error}"
            ) from error
        nlp.add_pipe("sentencizer")
        nlp.max_length = sys.maxsize  # the limit is only for parsers
    return nlp

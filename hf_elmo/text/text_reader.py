"""Read text as a stream: tokenised lines, CoNLL-U or raw text, also from compressed files."""

import bz2
import glob
import gzip
import io
import logging
import lzma
import math
import os
import random
import stat
import sys
import zlib
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache, lru_cache, partial
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, get_args

import fsspec
from fsspec.core import has_magic

from .file_names import check_text_names

logger = logging.getLogger(__name__)

InputFormat: TypeAlias = Literal["text", "raw", "conllu"]
# Function that yields all sentences of a text, each a list of words: shuffled with the given random
# generator, or in order if the generator is None.
SentenceReader: TypeAlias = Callable[[random.Random | None], Iterator[list[str]]]

NUM_CONLLU_COLUMNS = 10
# Number of files that a shuffled pass reads at the same time: more files mix the text better. An
# open `.xz` file needs up to 64 MB of memory.
OPEN_FILES = 32
# First bytes of files that are not text.
OTHER_FORMATS = {
    b"\x1f\x8b": "compressed by gzip: decompress it, or give the file a name with .gz",
    b"BZh": "compressed by bzip2: decompress it, or give the file a name with .bz2",
    b"\xfd7zXZ": "compressed by xz: decompress it, or give the file a name with .xz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: decompress it, or give the file a name with .zst",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"PAR1": "a parquet file, which only pretrain --dataset and embed read",
}
PACKED_BYTES = 4096  # Zstandard bytes decompressed at once; the result can be 10,000 times larger
MAX_WINDOW = 2**31  # of a Zstandard frame: that of zstd --long=31, the largest
LINES_AT_ONCE = 1000  # lines of raw text given to spaCy at once
FEWEST_WRAPPED = 10  # lines of raw text that can show that it is wrapped
BUFFER_SIZE = 65_536  # number of sentences that a shuffled pass holds in memory


def read_files(
    patterns: Iterable[str | Path],
    input_format: InputFormat = "text",
    pipeline: str = "en",
    *,
    has_weights: bool = False,
    leave_out: Callable[[str], bool] | None = None,
) -> SentenceReader:
    """Make a reader: a function that yields the sentences of text files.

    A shuffled pass reads `OPEN_FILES` files at the same time, from large files more often, and
    shuffles in a buffer of `BUFFER_SIZE` sentences. Empty sentences are skipped.

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
    weights = _weigh_all(patterns, has_weights, leave_out)
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
            sentences = shuffle(_interleave(readers, sizes, rng), rng)
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
        The reader. A shuffled pass uses a buffer of `BUFFER_SIZE` sentences. Examples without text
        are skipped.

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


def find_files(pattern: str) -> list[str]:
    """Find files by name, pattern or address (any address that fsspec supports).

    Raises:
        FileNotFoundError: If there are no files.
        ValueError: If the protocol of the address is unknown.
        ImportError: If the address needs a package that is not installed.
    """
    found = _list_files(pattern)
    if not found:
        advice = ""
        if pattern == "-":
            advice = " Standard input is not read here: store its text in a file."
        elif Path(pattern).is_dir():
            advice = f" It is a folder: name its files, '{glob.escape(pattern.rstrip('/'))}/*'."
        elif Path(pattern).exists():
            advice = " It is not a regular file: store its text in one."
        raise FileNotFoundError(f"Expected files to read, found none at {pattern}.{advice}")
    return found


def _list_files(pattern: str) -> list[str]:
    if _is_address(pattern):
        system, path = fsspec.url_to_fs(pattern)
        names = sorted(system.glob(path)) if has_magic(path) else [path]
        return [system.unstrip_protocol(name) for name in names if system.isfile(name)]
    if Path(pattern).is_file():
        return [str(Path(pattern))]  # without ./
    names = sorted(set(glob.glob(pattern, recursive=True)))  # noqa: PTH207 (any folder)
    if "**" in pattern:  # links to folders could give a file several names
        names = sorted({Path(name).resolve(): name for name in reversed(names)}.values())
    return [str(Path(name)) for name in names if Path(name).is_file()]


def measure_file(name: str) -> int:
    """Return the size of a file in bytes; 0 = unknown."""
    if not _is_address(name):
        return Path(name).stat().st_size
    system, path = fsspec.url_to_fs(name)
    return system.size(path) or 0


def measure_files(
    patterns: Iterable[str | Path],
    *,
    has_weights: bool = False,
    leave_out: Callable[[str], bool] | None = None,
) -> dict[str, int]:
    """Return the sizes of files in bytes, by their names; arguments as for `read_files`."""
    return {file: measure_file(file) for file in _weigh_all(patterns, has_weights, leave_out)}


def locate_file(name: str) -> str:
    """Return the absolute name of a file without links, which is equal for all its names."""
    return name if _is_address(name) else str(Path(name).resolve())


def open_file(name: str) -> AbstractContextManager[BinaryIO]:
    """Open a file or an address for reading."""
    return fsspec.open(name, "rb") if _is_address(name) else Path(name).open("rb")


def _is_address(name: str) -> bool:
    return "://" in name


def decompress(stream: BinaryIO, name: str) -> BinaryIO:
    """Return the stream of a file, decompressed according to the suffix of its name.

    Raises:
        ValueError: If a compressed file is empty, as after a failed copy.
    """
    openers: dict[str, Callable[[BinaryIO], Any]] = {
        ".gz": gzip.open,
        ".bz2": bz2.open,
        ".xz": lzma.open,
        ".zst": _open_zstandard,
    }
    opener = openers.get(Path(name).suffix.lower())
    if opener is None:
        return stream
    if _is_empty(stream):  # not an error for gzip
        raise ValueError(f"Expected a complete compressed file, but {name} is empty.")
    return opener(stream)


def _is_empty(stream: BinaryIO) -> bool:
    """Return whether a file is known to have no bytes; nothing is read, because of pipes."""
    if hasattr(stream, "size"):  # of fsspec; None = unknown
        return bool(stream.size == 0)
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # no file
        return False
    return stat.S_ISREG(status.st_mode) and not status.st_size


def _open_zstandard(stream: BinaryIO) -> BinaryIO:
    try:
        import zstandard
    except ImportError as error:
        raise ImportError(
            "Reading .zst files needs the package zstandard. Run pip install zstandard."
        ) from error
    return io.BufferedReader(_ZstandardReader(stream, zstandard))


class _ZstandardReader(io.RawIOBase):
    """Stream of decompressed Zstandard frames; unlike zstandard's, it detects truncated files."""

    def __init__(self, stream: BinaryIO, zstandard: Any) -> None:
        self._stream, self._zstandard = stream, zstandard
        self._frame: Any = None
        self._packed, self._unpacked = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._unpacked:
            packed = self._packed or self._stream.read(PACKED_BYTES)
            if not packed:
                if self._frame is not None:
                    raise EOFError("the file is truncated.")
                return 0
            self._frame = (
                self._frame
                or self._zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj()
            )
            try:
                self._unpacked = memoryview(self._frame.decompress(packed))
            except self._zstandard.ZstdError as error:
                raise zlib.error(str(error)) from error
            self._packed = self._frame.unused_data
            self._frame = None if self._frame.eof else self._frame
        size = min(len(buffer), len(self._unpacked))
        buffer[:size], self._unpacked = self._unpacked[:size], self._unpacked[size:]
        return size


def _advise(line: bytes) -> str:
    """Return advice for a line that is not UTF-8."""
    for start, name in OTHER_FORMATS.items():
        if line.startswith(start):
            return f"It is not text, but {name}."
    encoding = "utf-16" if line.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin1"
    return f"Convert the text first, for example with iconv -f {encoding} -t utf-8."


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """Decode lines and keep their line ends; errors contain the line number.

    Raises:
        ValueError: If a line is not UTF-8, or the compressed file is damaged.
    """
    number = 0
    try:
        for number, line in enumerate(stream, start=1):
            text = line.decode()
            text = text.removeprefix("\ufeff") if number == 1 else text
            if text:  # not only a byte order mark
                yield text
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected UTF-8 in {name}, got byte {error.object[error.start]:#04x} in line "
            f"{number}, column {error.start + 1}. {_advise(error.object)}"
        ) from error
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # a disk error, not damaged content
            raise
        raise ValueError(
            f"Expected a complete compressed file, but {name} is damaged after line {number}: "
            f"{error}"
        ) from error


def _cut(
    lines: Iterator[str], input_format: InputFormat, pipeline: str, name: str
) -> Iterator[list[str]]:
    if input_format == "conllu":
        return _read_conllu(lines, name)
    if input_format == "raw":
        return _read_raw(lines, pipeline, name)
    return map(str.split, lines)


def _check_lines(lines: Iterable[str], name: str) -> Iterator[str]:
    """Refuse NULs, as in UTF-16 without a mark; warn of carriage returns within lines."""
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            raise ValueError(
                f"Expected text in {name}, got a NUL in line {number}. If the file is UTF-16, "
                "convert it first, for example with iconv -f utf-16le -t utf-8."
            )
        if "\r" in line and "\r" in line.rstrip("\r\n"):
            _warn_of_returns(name)
        yield line


@cache  # a text is read several times
def _warn_of_returns(name: str) -> None:
    logger.warning(
        "%s contains carriage returns within lines, which do not end a line. If they should, "
        "convert the file first, for example with tr '\\r' '\\n'.",
        name,
    )


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
        elif columns[0].isdigit():
            words.append(columns[1])
    if words:
        yield words


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


@cache
def _warn_of_wrapping(name: str) -> None:
    logger.warning(
        "Many lines of %s begin with a small letter, as in wrapped text. Each line is read as a "
        "paragraph, so a sentence ends at the end of its line. If it should not, join the lines "
        "of each paragraph first.",
        name,
    )


def _read_raw(lines: Iterable[str], pipeline: str, name: str) -> Iterator[list[str]]:
    """Split each line into sentences and words with spaCy; skip whitespace."""
    nlp = _load_pipeline(pipeline)
    texts = (text for text in map(str.strip, lines) if text)
    while block := list(islice(texts, LINES_AT_ONCE)):
        small = sum(text[0].islower() for text in block)
        has_capitals = sum(text != text.lower() for text in block) > 0.1 * len(block)
        if len(block) >= FEWEST_WRAPPED and has_capitals and small > 0.3 * len(block):
            _warn_of_wrapping(name)
        with nlp.memory_zone():  # else its vocab keeps each distinct word of the text
            sentences = [
                [token.text for token in sentence if not token.is_space]
                for doc in nlp.pipe(block)
                for sentence in (doc.sents if doc.has_annotation("SENT_START") else [doc[:]])
            ]
        yield from sentences


def _weigh_all(
    patterns: Iterable[str | Path],
    has_weights: bool,
    leave_out: Callable[[str], bool] | None = None,
) -> dict[str, float]:
    """Find the files of all patterns, each once, with their weights."""
    weights: dict[str, float] = {}
    names: dict[str, str] = {}  # the first name of each file
    for pattern in map(str, patterns):
        found = _weigh_files(pattern, has_weights)
        kept = [pair for pair in found if leave_out is None or not leave_out(pair[0])]
        if not kept:
            raise FileNotFoundError(
                f"Expected files to read, found none at {pattern} apart from the run's own."
            )
        for name, weight in kept:
            file = names.setdefault(locate_file(name), name)
            if weights.setdefault(file, weight) != weight:
                raise ValueError(
                    f"Expected one weight of {file}, got {weights[file]:g} and {weight:g}: several "
                    "patterns match it."
                )
    return weights


def _weigh_files(pattern: str, has_weight: bool) -> list[tuple[str, float]]:
    """Find the files of a pattern; return the name and the weight of each file."""
    start, _, end = pattern.rpartition("=")
    try:
        weight = float(end) if has_weight and start else None
    except ValueError:
        weight = None
    if weight is None or _list_files(pattern):
        return [(file, 1.0) for file in find_files(pattern)]
    if not 0 < weight < math.inf:
        raise ValueError(f"Expected a weight above 0 after {start}=, got {end}.")
    return [(file, weight) for file in find_files(start)]


def _split(weight: float) -> list[float]:
    """Split a weight into 1.0 for each complete pass over a file, and the remaining share."""
    rest = weight % 1
    return [1.0] * int(weight) + [rest] * (rest > 0)


def _take(read: Callable[[], Iterator[Any]], share: float, rng: random.Random) -> Iterator[Any]:
    """Yield a random share of the sentences of a file."""
    if share == 1:
        return read()
    return (sentence for sentence in read() if rng.random() < share)


def _interleave(
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

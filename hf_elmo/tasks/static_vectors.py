"""Static word vectors, in addition to ELMo: reading, scaling, and the file of their words."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hf_elmo.files.output_file import PACKED_SUFFIXES
from hf_elmo.text.text_files import decode_lines, decompress

STATIC_WORDS_NAME = "static_words.txt"
FLOAT_BYTES = 4
MAX_WIDTH = 2**16  # a damaged file may claim any width


class StaticVectors(NamedTuple):
    """Words and their static vectors; the table has the shape `(words, width)`."""

    words: list[str]
    table: Tensor


def find_row(rows: Mapping[str, int], word: str) -> int:
    """Find the row of a word, or else of its lower-case form; return 0 if neither has one.

    The lower-case form is Unicode's, not that of a language: Turkish `I` gives `i`.
    """
    return rows.get(word) or rows.get(word.lower(), 0)


def read_vectors(path: Path, *, max_words: int | None = None) -> StaticVectors:
    """Read vectors in word2vec's formats, as gensim, GloVe, fastText and floret write them.

    Args:
        path: Text file with a word and its vector per line, or binary file (`.bin`). A binary file
            starts with a line that holds the number of words and the width; a text file may, too.
            Both may be compressed (`.gz`, `.bz2`, `.xz`, `.zst`).
        max_words: Maximum number of words to read, from the start of the file; None = all.

    Raises:
        ValueError: If a line or a binary vector is invalid, if a number is not finite, or if there
            are no vectors.
    """
    with path.open("rb") as packed:
        file = decompress(packed, path.name)
        name = path.with_suffix("") if path.suffix.lower() in PACKED_SUFFIXES else path
        rows = _read_binary(file, path) if name.suffix == ".bin" else _read_text(file, path)
        words: list[str] = []
        vectors: list[npt.NDArray[np.float32]] = []
        for word, vector in rows:
            if len(words) == max_words:
                break
            if "\n" in word:  # the words are stored one per line
                continue
            wrong = vector[~np.isfinite(vector)]
            if len(wrong):
                raise ValueError(
                    f"{path}: expected finite numbers, found {wrong[0]} in the vector of {word!r}."
                )
            words.append(word)
            vectors.append(vector)
    if not words:
        raise ValueError(f"{path}: expected vectors of words, found none.")
    return StaticVectors(words, torch.from_numpy(np.stack(vectors)))


def scale_vectors(table: Tensor) -> Tensor:
    """Scale static vectors `(words, width)` to a mean square of 1, similar to ELMo's values.

    Programs write vectors of very different norms. A short training run does not adjust to them.

    Raises:
        ValueError: If all numbers are 0.
    """
    # In float64, because a square can be too large for float32.
    size = torch.linalg.vector_norm(table, dtype=torch.float64) / table.numel() ** 0.5
    if not size:
        raise ValueError("Expected static vectors with other numbers than 0, got only zeros.")
    return table / size.to(table.dtype)


def _read_text(file: BinaryIO, path: Path) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    width = count = None
    number = 0
    for number, line in enumerate(decode_lines(file, str(path)), start=1):
        line = line.rstrip().replace("\t", " ")  # noqa: PLW2901 (without its end)
        word, *numbers = line.split(" ")
        if number == 1 and len(numbers) == 1 and word.isdecimal() and numbers[0].isdecimal():
            count, width = int(word), int(numbers[0])  # header
            continue
        width = width or len(numbers)
        word, *numbers = line.rsplit(" ", width)  # a word may have spaces, as in GloVe
        try:
            vector = np.array(numbers, dtype=np.float32)
        except ValueError:
            vector = np.empty(0, dtype=np.float32)
        if len(vector) != width or not width:
            raise ValueError(
                f"{path}, line {number}: expected a word and {width or 'its'} numbers, found "
                f"{line[:60]!r}."
            )
        yield word, vector
    if count is not None and number <= count:
        raise ValueError(
            f"{path}: expected {count} vectors (first line), found {number - 1} and an end."
        )


def _read_binary(file: BinaryIO, path: Path) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    header = file.readline()
    try:
        count, width = map(int, header.split())
    except ValueError as error:
        raise ValueError(
            f"{path}: expected a first line of two numbers, found {header[:60]!r}."
        ) from error
    if not 0 < width <= MAX_WIDTH:
        raise ValueError(f"{path}: expected vectors of width 1 to {MAX_WIDTH}, found {width}.")
    for number in range(count):
        word = bytearray()
        while (letter := file.read(1)) not in (b" ", b""):
            word += letter
        record = file.read(FLOAT_BYTES * width)
        if len(record) < FLOAT_BYTES * width:
            raise ValueError(f"{path}: expected {count} vectors, found {number} and an end.")
        yield (
            word.decode("utf-8", "replace").lstrip("\n"),
            np.frombuffer(record, dtype="<f4").copy(),
        )
    if rest := file.read(2).strip():
        raise ValueError(
            f"{path}: expected the end after {count} binary vectors, found {rest!r}. If this file "
            "is text, its name must not end in .bin."
        )


def read_static_words(path: Path, num_words: int, checksum: int | None) -> list[str]:
    """Read the words of static vectors, as `WordInputs.save` writes them.

    Args:
        path: File of the words.
        num_words: How many words the model has vectors for.
        checksum: Result of `checksum_words`; None = unknown.

    Raises:
        ValueError: If the file does not have these words.
    """
    words = path.read_bytes().decode("utf-8").split("\n")[:-1]
    if len(words) != num_words or checksum not in (None, checksum_words(words)):
        raise ValueError(
            f"Expected the {num_words} words of the model's static vectors in {path}, got "
            f"{len(words)} words or others: the file is damaged, or belongs to another model."
        )
    return words


def checksum_words(words: Sequence[str]) -> int:
    """Compute a checksum of words, in their order."""
    return zlib.crc32("\n".join(words).encode())

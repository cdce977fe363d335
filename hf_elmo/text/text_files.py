"""Find, open and decompress text files, and decode their lines."""

import glob
import io
import lzma
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
from fsspec.compression import compr
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import infer_compression

DATASET_SUFFIXES = (
    *(".json", ".jsonl", ".ndjson", ".parquet", ".arrow", ".csv", ".tsv", ".xml"),
    *(".conll", ".conllu"),
)
MAX_WINDOW = 2**31  # of a Zstandard frame: that of zstd --long=31, the largest


def find_files(pattern: str) -> list[str]:
    """Find files by name, pattern or address (any address that fsspec supports).

    Raises:
        FileNotFoundError: If there are no files.
        ValueError: If the protocol of the address is unknown.
        ImportError: If the address needs a package that is not installed.
    """
    found = _list_files(pattern)
    if not found:
        advice = " It is a folder." if Path(pattern).is_dir() else ""
        raise FileNotFoundError(f"Expected files to read, found none at {pattern}.{advice}")
    return found


def _list_files(pattern: str) -> list[str]:
    if _is_address(pattern):
        system, path = fsspec.url_to_fs(pattern)
        names = [path] if system.isfile(path) else sorted(filter(system.isfile, system.glob(path)))
        is_local = isinstance(system, LocalFileSystem)  # then the name is a path
        return names if is_local else [system.unstrip_protocol(name) for name in names]
    exact = Path(pattern).is_file()
    names = [pattern] if exact else sorted(set(glob.glob(pattern, recursive=True)))  # noqa: PTH207 (any folder)
    if "**" in pattern:  # links to folders could give a file several names
        names = sorted({Path(name).resolve(): name for name in reversed(names)}.values())
    return [str(Path(name)) for name in names if Path(name).is_file()]  # without ./


def weigh_files(
    patterns: Iterable[str | Path],
    has_weights: bool,
    leave_out: Callable[[str], bool] | None = None,
) -> dict[str, float]:
    """Find the files of all patterns, each once, with their weights."""
    weights: dict[str, float] = {}
    names: dict[str, str] = {}  # the first name of each file
    for pattern in map(str, patterns):
        found = _weigh_pattern(pattern, has_weights)
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


def _weigh_pattern(pattern: str, has_weight: bool) -> list[tuple[str, float]]:
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


def measure_files(
    patterns: Iterable[str | Path],
    *,
    has_weights: bool = False,
    leave_out: Callable[[str], bool] | None = None,
) -> dict[str, int]:
    """Return the sizes of files in bytes, by their names; arguments as for `read_files`."""
    return {file: measure_file(file) for file in weigh_files(patterns, has_weights, leave_out)}


def check_text_names(names: Iterable[str]) -> None:
    """Refuse files with names of datasets, whose columns would be read as words.

    Raises:
        ValueError: If a name is that of a dataset, also of a compressed one.
    """
    for name in names:
        if re.sub(r"\.(gz|bz2|xz|zst)$", "", name.lower()).endswith(DATASET_SUFFIXES):
            raise ValueError(
                f"Expected text, got {name}. Its name is that of a dataset. Write its text to a "
                "file, one sentence per line. Give --input-format conllu for CoNLL-U. Other such "
                "files are read by pretrain --dataset only, and parquet by embed."
            )


def measure_file(name: str) -> int:
    """Return the size of a file in bytes; 0 = unknown."""
    if not _is_address(name):
        return Path(name).stat().st_size
    system, path = fsspec.url_to_fs(name)
    return system.size(path) or 0


def locate_file(name: str) -> str:
    """Return the absolute name of a file without links, which is equal for all its names."""
    return name if _is_address(name) else str(Path(name).resolve())


def open_file(name: str) -> AbstractContextManager[BinaryIO]:
    """Open a file or an address for reading."""
    return fsspec.open(name, "rb") if _is_address(name) else Path(name).open("rb")


def _is_address(name: str) -> bool:
    return "://" in name


def decompress(stream: BinaryIO, name: str) -> BinaryIO:
    """Return the stream of a file, decompressed according to the suffix of its name."""
    kind = infer_compression(name)
    if kind == "zstd":  # fsspec would read the first frame alone
        import zstandard

        frames: Any = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
        return io.BufferedReader(frames.stream_reader(stream, read_across_frames=True))
    return stream if kind is None else compr[kind](stream, mode="rb")


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """Decode lines and keep their line ends; errors contain the line number.

    Raises:
        ValueError: If a line is not UTF-8, or the compressed file is damaged.
    """
    number = 0
    try:
        for number, line in enumerate(stream, start=1):
            text = line.decode()
            # Also of files that were joined; elsewhere, a mark before a blank is a word.
            if number == 1 or not text[1:2].isspace():
                text = text.removeprefix("\ufeff")
            if text:  # not only a byte order mark
                yield text
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected UTF-8 in {name}, got byte {error.object[error.start]:#04x} in line "
            f"{number}, column {error.start + 1}."
        ) from error
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk
            raise
        raise ValueError(
            f"Expected a complete compressed file, but {name} is damaged after line {number}: "
            f"{error}"
        ) from error

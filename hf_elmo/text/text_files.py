"""Find, open and decompress text files, and decode their lines."""

import bz2
import glob
import gzip
import io
import lzma
import math
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
from fsspec.core import has_magic
from fsspec.implementations.local import LocalFileSystem

DATASET_SUFFIXES = (
    *(".json", ".jsonl", ".ndjson", ".parquet", ".arrow", ".csv", ".tsv", ".xml"),
    *(".conll", ".conllu"),
)
# First bytes of files that are not text.
OTHER_FORMATS = {
    b"\x1f\x8b": "compressed by gzip: decompress it, or give the file a name with .gz",
    b"BZh": "compressed by bzip2: decompress it, or give the file a name with .bz2",
    b"\xfd7zXZ": "compressed by xz: decompress it, or give the file a name with .xz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: decompress it, or give the file a name with .zst",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"PAR1": "a parquet file, which only pretrain --dataset and embed read",
}
PACKED_BYTES = 4096  # that are decompressed at once; the result can be 10,000 times larger
MAX_WINDOW = 2**31  # of a Zstandard frame: that of zstd --long=31, the largest


def find_files(pattern: str) -> list[str]:
    """Find files by name, pattern or address (any address that fsspec supports).

    Raises:
        FileNotFoundError: If there are no files, or a name is a link to no file.
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
        names = [name for name in names if system.isfile(name)]
        is_local = isinstance(system, LocalFileSystem)  # then the name is a path
        return names if is_local else [system.unstrip_protocol(name) for name in names]
    if Path(pattern).is_file():
        return [str(Path(pattern))]  # without ./
    names = sorted(set(glob.glob(pattern, recursive=True)))  # noqa: PTH207 (any folder)
    if "**" in pattern:  # links to folders could give a file several names
        names = sorted({Path(name).resolve(): name for name in reversed(names)}.values())
    for name in names:
        if Path(name).is_symlink() and not Path(name).exists():
            raise FileNotFoundError(f"Expected files to read, found a link to no file: {name}.")
    return [str(Path(name)) for name in names if Path(name).is_file()]


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
    """Refuse files with names of datasets, which would be read as lines of text.

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
    """Return the stream of a file, decompressed according to the suffix of its name.

    Raises:
        ValueError: If a compressed file is empty, as after a failed copy.
    """
    openers: dict[str, Callable[[BinaryIO], Any]] = {
        ".gz": gzip.open,
        ".bz2": partial(_open_frames, bz2.BZ2Decompressor),
        ".xz": partial(_open_frames, partial(lzma.LZMADecompressor, lzma.FORMAT_XZ), padding=b"\0"),
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

    def start_frame() -> Any:
        return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj()

    return _open_frames(start_frame, stream, zstandard.ZstdError)


def _open_frames(
    start_frame: Callable[[], Any],
    stream: BinaryIO,
    error: type[Exception] = lzma.LZMAError,
    padding: bytes = b"",
) -> BinaryIO:
    return io.BufferedReader(_FrameReader(start_frame, stream, error, padding))


class _FrameReader(io.RawIOBase):
    """Stream of decompressed frames, one after another, perhaps with padding after a frame.

    Unlike the readers of bz2, lzma and zstandard, it detects truncated files and damaged frames
    after the first one.
    """

    def __init__(
        self,
        start_frame: Callable[[], Any],
        stream: BinaryIO,
        error: type[Exception],
        padding: bytes,
    ) -> None:
        self._start_frame, self._stream, self._error = start_frame, stream, error
        self._padding, self._has_frames = padding, False
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
            self._packed = b""
            if self._frame is None:
                packed = packed.lstrip(self._padding) if self._has_frames else packed
                if not packed:
                    continue
                self._frame, self._has_frames = self._start_frame(), True
            try:
                self._unpacked = memoryview(self._frame.decompress(packed))
            except self._error as error:
                raise zlib.error(str(error)) from error
            self._packed = self._frame.unused_data
            self._frame = None if self._frame.eof else self._frame
        size = min(len(buffer), len(self._unpacked))
        buffer[:size], self._unpacked = self._unpacked[:size], self._unpacked[size:]
        return size


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


def _advise(line: bytes) -> str:
    """Return advice for a line that is not UTF-8."""
    for start, name in OTHER_FORMATS.items():
        if line.startswith(start):
            return f"It is not text, but {name}."
    encoding = "utf-16" if line.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin1"
    return f"Convert the text first, for example with iconv -f {encoding} -t utf-8."

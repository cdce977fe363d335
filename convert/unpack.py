"""Unpack archives of unknown origin: zip, tar, gz, bz2, xz."""

import bz2
import errno
import gzip
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import IO, cast

from convert.layout import ConversionError

ZIP_START = b"PK\x03\x04"
OPENERS: dict[bytes, Callable[[Path], BufferedIOBase]] = {  # by the first bytes of a file
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
# Weights hardly shrink, text to a fourth; a bomb grows to a thousandfold.
MAX_GROWTH = 20
ALWAYS_ALLOWED_SIZE = 1 << 28
MAX_FILES = 10_000
MAX_HEADER_SIZE = 1 << 20  # of a name in a tar
COPY_SIZE = 1 << 20

# What the modules above raise for broken archives.
BROKEN = (
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


def is_archive(path: Path) -> bool:
    """Tell an archive, or a compressed file, by its first bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(tarfile.BLOCKSIZE)
    return start.startswith((ZIP_START, *OPENERS)) or _is_tar(start)


def _is_tar(start: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def unpack(path: Path, folder: Path) -> None:
    """Unpack an archive into an empty folder.

    Args:
        path: The archive. A file that is only compressed becomes one of the same name without
            the ending.
        folder: Where to; nothing is written outside it.

    Raises:
        ConversionError: If it is broken, encrypted, a bomb, or holds links, devices or names that
            lead out of the folder.
        OSError: If a file cannot be read or written.
    """
    try:
        for name, stream in _list_files(path):
            place = folder / _check_name(path, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as file:
                while block := stream.read(COPY_SIZE):
                    file.write(block)
    except ConversionError:
        raise
    except BROKEN as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL, errno.EEXIST):
            raise  # no space left, no permission, ...
        raise ConversionError(f"{path}: expected a whole archive, got: {error}") from error


class _Bounded:
    """A stream that may give only so many bytes."""

    def __init__(self, stream: IO[bytes] | BufferedIOBase, path: Path, left: int) -> None:
        self.stream, self.path, self.left = stream, path, left

    def read(self, size: int = COPY_SIZE) -> bytes:
        block = self.stream.read(size)
        self.left -= len(block)
        if self.left < 0:
            raise ConversionError(
                f"{self.path}: expected an archive that grows at most {MAX_GROWTH}-fold, got more. "
                "If you trust it, unpack it yourself and convert what is in it."
            )
        return block


def _list_files(path: Path) -> Iterator[tuple[str, _Bounded]]:
    """Open the files of an archive, one after the other."""
    left = max(ALWAYS_ALLOWED_SIZE, MAX_GROWTH * path.stat().st_size)
    with path.open("rb") as raw:
        start = raw.read(tarfile.BLOCKSIZE)
    if start.startswith(ZIP_START):
        yield from _list_zip(path, left)
        return
    opener = next((OPENERS[magic] for magic in OPENERS if start.startswith(magic)), _open_plain)
    with opener(path) as file:
        is_tar = _is_tar(file.read(tarfile.BLOCKSIZE))
    with opener(path) as file:
        if is_tar:
            yield from _list_tar(path, _Bounded(file, path, left))
        else:
            yield path.stem, _Bounded(file, path, left)


def _open_plain(path: Path) -> BufferedIOBase:
    return path.open("rb")


def _list_zip(path: Path, left: int) -> Iterator[tuple[str, _Bounded]]:
    with zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        if len(entries) > MAX_FILES or sum(entry.file_size for entry in entries) > left:
            raise ConversionError(
                f"{path}: expected an archive of at most {MAX_FILES:,} files and {left:,} bytes, "
                f"got {len(entries):,} and {sum(entry.file_size for entry in entries):,}."
            )
        for entry in entries:
            if stat.S_ISLNK(entry.external_attr >> 16):
                raise _no_file(path, entry.filename)
            with archive.open(entry) as file:
                yield entry.filename, _Bounded(file, path, entry.file_size)


class _TarInfo(tarfile.TarInfo):
    """A member whose own header, with a long name perhaps, is of a sane size."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        is_extension = not self.isreg() and not self.isdir()
        if is_extension and self.size > MAX_HEADER_SIZE:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]  # not in stubs
        return member


def _list_tar(path: Path, stream: _Bounded) -> Iterator[tuple[str, _Bounded]]:
    left, readable = stream.left, cast(IO[bytes], stream)  # only its read is called
    with tarfile.open(fileobj=readable, mode="r|", tarinfo=_TarInfo) as archive:
        for number, member in enumerate(archive):
            if number == MAX_FILES:
                raise ConversionError(f"{path}: expected at most {MAX_FILES:,} files in it.")
            if member.isdir():
                continue
            file = archive.extractfile(member) if member.isreg() else None
            if file is None:
                raise _no_file(path, member.name)
            yield member.name, _Bounded(file, path, left)  # more than in the archive, if sparse


def _no_file(path: Path, name: str) -> ConversionError:
    return ConversionError(
        f"{path}: expected files and folders in it, got a link or device: {name[:80]!r}."
    )


def _check_name(path: Path, name: str) -> PurePosixPath:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or set(name) & set("\\:\0") or not place.parts:
        raise ConversionError(
            f"{path}: expected names of files within it, got one that leads elsewhere: "
            f"{name[:80]!r}."
        )
    return place

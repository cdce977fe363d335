"""Unpack archives of unknown origin: zip, tar, gz, bz2, xz."""

import bz2
import errno
import gzip
import lzma
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any

from convert.layout import ConversionError

ZIP_START = b"PK\x03\x04"
OPENERS: dict[bytes, Callable[[Path], BufferedIOBase]] = {  # by the first bytes of a file
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"": lambda path: path.open("rb"),
}
# Weights hardly compress, and text compresses to a fourth; a zip bomb grows a thousandfold.
MAX_GROWTH = 20
ALWAYS_ALLOWED_SIZE = 1 << 28
MAX_FILES = 10_000
COPY_SIZE = 1 << 20
MAX_HEADER_SIZE = 1 << 20  # bytes; tar stores a long name as a header

# The operating system's error numbers for invalid names in an archive.
NAME_ERRORS = (errno.EINVAL, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)
# Errors of the modules above for broken archives.
BROKEN = (
    EOFError,
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
    """Recognise an archive, or a compressed file, by its first bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(tarfile.BLOCKSIZE)
    return start.startswith((ZIP_START, *filter(None, OPENERS))) or _is_tar(start)


def link(path: Path, place: Path) -> None:
    """Link a file to a second place, or copy it (on Windows, a link needs a privilege)."""
    try:
        place.symlink_to(path.absolute())
    except FileExistsError:  # another file of this name was linked before
        raise
    except OSError:
        shutil.copyfile(path, place)


def _is_tar(start: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def unpack(path: Path, folder: Path) -> None:
    """Unpack an archive into an empty folder.

    Args:
        path: Archive or compressed file. The content of a compressed `x.gz` is written to `x`.
        folder: Target folder; nothing is written outside it.

    Raises:
        ConversionError: If `path` is broken, encrypted, a zip bomb, or a tar with links, devices or
            names outside the folder.
        OSError: If a file cannot be read or written.
    """
    bound = max(ALWAYS_ALLOWED_SIZE, MAX_GROWTH * path.stat().st_size)
    try:
        with path.open("rb") as file:
            start = file.read(tarfile.BLOCKSIZE)
        if start.startswith(ZIP_START):
            _unpack_zip(path, folder, bound)
            return
        opener = next(OPENERS[magic] for magic in OPENERS if start.startswith(magic))
        with opener(path) as file:
            is_tar = _is_tar(file.read(tarfile.BLOCKSIZE))
        with opener(path) as file:
            stream: Any = _Bounded(file, path, bound)  # only `read` is called
            if is_tar:
                _unpack_tar(path, stream, folder, bound)
            else:
                with (folder / path.stem).open("xb") as target:
                    shutil.copyfileobj(stream, target, COPY_SIZE)
    except ConversionError:
        raise
    except BROKEN as error:
        if isinstance(error, OSError) and error.errno not in (None, *NAME_ERRORS):
            raise  # no space left, no permission, ...
        raise ConversionError(f"{path}: expected a whole archive, got: {error}") from error


class _Bounded:
    """Stream that raises an error after a given number of bytes."""

    def __init__(self, stream: IO[bytes] | BufferedIOBase, path: Path, bound: int) -> None:
        self.stream, self.path, self.left = stream, path, bound

    def read(self, size: int = COPY_SIZE) -> bytes:
        block = self.stream.read(size)
        self.left -= len(block)
        if self.left < 0:
            raise _too_large(self.path)
        return block


def _too_large(path: Path) -> ConversionError:
    return ConversionError(
        f"{path}: expected an archive of at most {MAX_FILES:,} files that grows at most "
        f"{MAX_GROWTH}-fold, got more. If you trust it, unpack it and convert its "
        "content."
    )


def _unpack_zip(path: Path, folder: Path, bound: int) -> None:
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if len(entries) > MAX_FILES or sum(entry.file_size for entry in entries) > bound:
            raise _too_large(path)
        archive.extractall(folder)  # never outside it, and links become plain files


class _TarInfo(tarfile.TarInfo):
    """Archive member with a limit on the size of its header."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        is_extension = not self.isreg() and not self.isdir()
        if is_extension and self.size > MAX_HEADER_SIZE:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]  # not in stubs
        return member


def _unpack_tar(path: Path, stream: IO[bytes], folder: Path, bound: int) -> None:
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_TarInfo) as archive:
        for number, member in enumerate(archive):
            if not (member.isreg() or member.isdir()):  # links have bypassed the filter before
                raise ConversionError(
                    f"{path}: expected files and folders in it, got a link or device: "
                    f"{member.name[:80]!r}."
                )
            bound -= member.size  # the unpacked size, even of a sparse file
            if number == MAX_FILES or bound < 0:
                raise _too_large(path)
            archive.extract(member, folder, filter="data")

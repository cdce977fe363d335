"""From a file or folder to the one checkpoint in it: archives, folders in folders."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from convert.layout import ConversionError, Format
from convert.unpack import is_archive, unpack

HIDDEN = (".", "__MACOSX")  # beginnings of names of which no archive's author knows
MAX_DEPTH = 4  # of folders in folders
MAX_ENTRIES, MAX_FOLDERS = 10_000, 100  # that are looked at
MAX_NESTING = 2  # of archives in archives

FindReader = Callable[[Path], Format | None]


@dataclass(frozen=True)
class Found:
    """A checkpoint that was found.

    Attributes:
        path: Its path, in the folder for what had to be unpacked if it was.
        reader: Its format.
        archives: What it was unpacked from.
    """

    path: Path
    reader: Format
    archives: tuple[Path, ...]


def find_checkpoint(source: Path, find_reader: FindReader, folder: Path) -> Found:
    """Find the checkpoint that a user means, unpacked where it has to be.

    Args:
        source: File, folder, archive or compressed file.
        find_reader: Returns the format of a path, None if it is of none.
        folder: Where archives are unpacked.

    Raises:
        ConversionError: If there is no checkpoint, or more than one.
        OSError: If a file cannot be read or written.
    """
    return Found(*_search(source, find_reader, folder))


def _search(
    path: Path, find_reader: FindReader, folder: Path, archives: tuple[Path, ...] = ()
) -> tuple[Path, Format, tuple[Path, ...]]:
    """Find the one checkpoint in a path, unpacking what has to be."""
    reader = find_reader(path)
    if reader is not None:
        return path, reader, archives
    if path.is_dir():
        return _search(_find_one(path, find_reader), find_reader, folder, archives)
    if not is_archive(path):
        raise ConversionError(
            f"{path}: is a file of no format that is known here (see --list-formats)."
        )
    if len(archives) == MAX_NESTING:
        names = " in ".join(archive.name for archive in (path, *reversed(archives)))
        raise ConversionError(
            f"{path}: expected at most {MAX_NESTING} archives in one another, got {names}. "
            "Unpack it yourself and convert what is in it."
        )
    unpacked = folder / f"unpacked{len(archives)}" / path.name
    unpacked.mkdir(parents=True)
    unpack(path, unpacked)
    if not archives:
        _link_neighbours(path, unpacked)
    return _search(unpacked, find_reader, folder, (*archives, path))


def _find_one(folder: Path, find_reader: FindReader) -> Path:
    """Find the only checkpoint in a folder; where there is none, the only archive."""
    level, archives = [folder], list[Path]()
    for _ in range(MAX_DEPTH):
        entries = [
            entry
            for place in level
            for entry in sorted(islice(place.iterdir(), MAX_ENTRIES))
            if not entry.name.startswith(HIDDEN)
        ]
        found = [entry for entry in entries if find_reader(entry) is not None]
        if found:
            return _expect_one(folder, found)
        archives += [entry for entry in entries if is_archive(entry)]
        level = [entry for entry in entries if entry.is_dir()][:MAX_FOLDERS]
    return _expect_one(folder, archives)


def _expect_one(folder: Path, found: list[Path]) -> Path:
    if not found:
        names = ", ".join(sorted(entry.name for entry in islice(folder.iterdir(), 10)))
        raise ConversionError(
            f"{folder}: is a folder of no format that is known here (see --list-formats); in it: "
            f"{names or 'nothing'}."
        )
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in found[:10])
        raise ConversionError(f"{folder}: expected one checkpoint in it, found {names}. Name one.")
    return found[0]


def _link_neighbours(path: Path, folder: Path) -> None:
    """Put what lies beside a compressed file, such as its options, beside what was in it."""
    entries = list(islice(folder.iterdir(), 2))
    if [entry.name for entry in entries] == [path.stem]:
        for neighbour in islice(path.resolve().parent.iterdir(), MAX_ENTRIES):
            place = folder / neighbour.name
            if neighbour.is_file() and not os.path.lexists(place) and not is_archive(neighbour):
                place.symlink_to(neighbour)

"""From what the user names to one checkpoint: Hub names, archives, folders with one in them."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from convert.layout import ConversionError, Format
from convert.unpack import is_archive, unpack

HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w.-]+))?", re.ASCII)  # name@revision
HIDDEN = (".", "__MACOSX")  # beginnings of names of which no archive's author knows
MAX_DEPTH = 4  # of folders in folders
MAX_ENTRIES, MAX_FOLDERS = 10_000, 100  # that are looked at
MAX_NESTING = 2  # of archives in archives

FindReader = Callable[[Path], Format | None]


@dataclass(frozen=True)
class Found:
    """A checkpoint that was found.

    Attributes:
        name: Its name, of the file or folder that the user has named, or on the Hub.
        path: Its path, in a temporary folder if it had to be unpacked.
        reader: Its format.
        archives: What it was unpacked from.
    """

    name: str
    path: Path
    reader: Format
    archives: tuple[Path, ...]


@contextmanager
def find_checkpoint(source: Path, find_reader: FindReader) -> Iterator[Found]:
    """Find the checkpoint that a user means, unpacked or downloaded for as long as it is needed.

    Args:
        source: File, folder, archive, compressed file, or name of a repository on the Hub.
        find_reader: Returns the format of a path, None if it is of none.

    Raises:
        ConversionError: If there is no checkpoint, or more than one.
        OSError: If a file cannot be read or written.
    """
    with ExitStack() as stack:
        is_here = os.path.lexists(source) or find_reader(source) is not None
        path = source if is_here else _download(source)
        path, reader, archives = _search(path, find_reader, stack)
        yield Found(source.name if is_here else str(source), path, reader, archives)


def _download(source: Path) -> Path:
    match = HUB_NAME.fullmatch(str(source))
    if match is None:
        raise ConversionError(f"{source}: expected a checkpoint, found no such file or folder.")
    try:
        return Path(huggingface_hub.snapshot_download(match[1], revision=match[2]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise ConversionError(
            f"{source}: expected a checkpoint, found no such file or folder, nor a repository of "
            f"this name on the Hub: {reason[0]}"
        ) from error


def _search(
    path: Path, find_reader: FindReader, stack: ExitStack, archives: tuple[Path, ...] = ()
) -> tuple[Path, Format, tuple[Path, ...]]:
    """Find the one checkpoint in a path, unpacking what has to be."""
    reader = find_reader(path)
    if reader is not None:
        return path, reader, archives
    if path.is_dir():
        return _search(_find_one(path, find_reader), find_reader, stack, archives)
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
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()), path.name)
    folder.mkdir()
    unpack(path, folder)
    if not archives:
        _link_neighbours(path, folder)
    return _search(folder, find_reader, stack, (*archives, path))


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

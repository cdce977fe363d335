"""Write the target atomically; never overwrite the user's files.

Temporary files are in a hidden folder next to the target. If a format has several files, they are
moved into place one by one, the target last. Before, a journal next to the folder lists them. After
a run was killed, the same command recognises, replaces and removes its files.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from convert.formats import hf_folder
from convert.layout import ConversionError

WORK_FOLDER, JOURNAL = ".{}.elmo-convert", ".{}.elmo-convert.json"
LOCK, NEW, OLD = "lock", "new", "old"  # in the folder


def check_target(target: Path, *, force: bool) -> None:
    """Check that a target can be written, and does not replace other files.

    Raises:
        ConversionError: If the check fails.
    """
    if not target.parent.is_dir():
        raise ConversionError(f"{target}: expected {target.parent} to be a folder, found none.")
    _check_places([target], force, _read_journal(target))


def _check_places(places: list[Path], force: bool, unfinished: set[Path]) -> None:
    for place in places:
        if not os.path.lexists(place) or place in unfinished:
            continue
        if not force:
            raise ConversionError(f"{place}: is there already. Replace it with --force.")
        if place.is_dir() and any(place.iterdir()) and not hf_folder.recognises(place):
            raise ConversionError(
                f"{place}: is a folder with something else than a model; keeping it."
            )


def check_space(target: Path, num_bytes: int) -> None:
    """Check that the disk has enough space for a target.

    Raises:
        ConversionError: If there is not enough space.
    """
    free = shutil.disk_usage(target.parent).free
    if num_bytes > free:
        raise ConversionError(
            f"{target}: expected {num_bytes:,} bytes of free space, there are {free:,}."
        )


@contextmanager
def make_work_folder(target: Path) -> Iterator[Path]:
    """Make the folder for temporary files next to a target.

    Remove the files of a killed run, but keep an old target that the run had moved there.

    Raises:
        ConversionError: If another process is converting to this target.
    """
    folder = target.with_name(WORK_FOLDER.format(target.name))
    folder.mkdir(exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except (Timeout, FileNotFoundError) as error:  # the other one may be removing the folder
        raise ConversionError(
            f"{target}: another process is converting to it; wait for it or name another target."
        ) from error
    with lock:
        if (folder / OLD).exists() and not os.path.lexists(target):
            (folder / OLD).rename(target)
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def make_new(folder: Path, target: Path) -> Path:
    """Return the path in the work folder at which the new target is written."""
    (folder / NEW).mkdir()
    return folder / NEW / target.name


def move_into_place(new: Path, target: Path, *, force: bool) -> None:
    """Move the target and its companion files from the work folder into place.

    Args:
        new: Path of `make_new`.
        target: Final path.
        force: Replace existing files.

    Raises:
        ConversionError: If a file of the user is in the way.
    """
    paths = sorted(new.parent.iterdir(), key=lambda path: path == new)  # the target last
    _check_places([target.with_name(path.name) for path in paths], force, _read_journal(target))
    folder = new.parent.parent
    journal = folder / "journal"
    journal.write_text(json.dumps({path.name: path.stat().st_ino for path in paths}))
    journal.replace(_journal_of(target))
    try:
        for path in paths:
            _move(path, target.with_name(path.name), folder / OLD)
    except BaseException:
        if not _read_journal(target):
            remove_journal(target)
        raise


def remove_journal(target: Path) -> None:
    """Remove the journal of a completed target."""
    _journal_of(target).unlink(missing_ok=True)


def _move(path: Path, place: Path, old: Path) -> None:
    if not path.is_dir() or not os.path.lexists(place):
        path.replace(place)
        return
    place.rename(old)  # a folder can't replace a file, nor a folder that is not empty
    try:
        path.rename(place)
    except BaseException:
        old.rename(place)
        raise


def _journal_of(target: Path) -> Path:
    return target.with_name(JOURNAL.format(target.name))


def _read_journal(target: Path) -> set[Path]:
    """List the files that a killed run has moved into place and nobody has replaced since."""
    try:
        inodes = json.loads(_journal_of(target).read_text())
    except (OSError, ValueError):
        return set()
    places = {target.with_name(name): inode for name, inode in inodes.items()}
    return {
        place
        for place, inode in places.items()
        if os.path.lexists(place) and place.lstat().st_ino == inode
    }

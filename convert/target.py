"""What is written: whole or not at all, and in place of nothing that the user has made."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from convert.formats import hf_folder
from convert.layout import ConversionError


def check_target(target: Path, force: bool) -> None:
    """Check that a target can be made, and replaces nothing but what may be replaced.

    Raises:
        ConversionError: If not.
    """
    if not target.parent.is_dir():
        raise ConversionError(f"{target}: expected {target.parent} to be a folder, found none.")
    if not os.path.lexists(target):
        return
    if not force:
        raise ConversionError(f"{target}: is there already. Replace it with --force.")
    if target.is_dir() and any(target.iterdir()) and not hf_folder.recognises(target):
        raise ConversionError(
            f"{target}: is a folder with something else than a model; keeping it."
        )


def check_space(target: Path, num_bytes: int) -> None:
    """Check that the disk has room for a target.

    Raises:
        ConversionError: If not.
    """
    free = shutil.disk_usage(target.parent).free
    if num_bytes > free:
        raise ConversionError(
            f"{target}: expected {num_bytes:,} bytes of free space, there are {free:,}."
        )


@contextmanager
def new_path(target: Path, force: bool) -> Iterator[Path]:
    """Provide a path to write to; on success, move it and what lies beside it into place."""
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        new = Path(folder, "new")
        new.mkdir()
        yield new / target.name
        places = {path: target.with_name(path.name) for path in new.iterdir()}
        for place in places.values():
            check_target(place, force)
        for path, place in places.items():
            _move(path, place, Path(folder, "old"))


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

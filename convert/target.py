"""Write the target atomically; never overwrite the user's files.

Temporary files are in a hidden folder next to the target. If a format has several files, they are
moved into place one by one, the target last. After a run was killed, the same command continues:
files that are already in place and equal to the new ones are kept.
"""

import filecmp
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from convert.formats import allennlp, bilm_hdf5, hf_folder, tensorflow
from convert.layout import ConversionError

WORK_FOLDER = ".{}.elmo-convert"
NEW, OLD = "new", "old"  # in the work folder


def check_target(target: Path, *, force: bool) -> None:
    """Check that a target is new or, if `force`, a file, an empty folder or a model's folder."""
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
    foreign = hf_folder.find_foreign(target) if target.is_dir() else []
    if foreign:
        raise ConversionError(
            f"{target}: is not replaced, because it contains {', '.join(foreign)}. Move that, or "
            "choose another target."
        )


def check_space(target: Path, num_bytes: int) -> None:
    """Check that the disk has enough space for a target."""
    free = shutil.disk_usage(target.parent).free
    if num_bytes > free:
        raise ConversionError(
            f"{target}: expected {num_bytes:,} bytes of free space, there are {free:,}."
        )


@contextmanager
def make_work_folder(target: Path) -> Iterator[Path]:
    """Make the folder for temporary files next to a target.

    If a killed run left the old target in this folder, and the target is missing, the old target
    is moved back. Then all other leftovers are deleted.

    Raises:
        ConversionError: If the target's folder does not exist, or the work folder is a link.
    """
    if not target.parent.is_dir():
        raise ConversionError(f"{target}: expected {target.parent} to be a folder, found none.")
    folder = target.with_name(WORK_FOLDER.format(target.name))
    if folder.is_symlink():
        raise ConversionError(f"{folder}: expected a folder for temporary files, found a link.")
    if (folder / OLD).exists() and not os.path.lexists(target):
        (folder / OLD).rename(target)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / NEW).mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def move_into_place(new: Path, target: Path, sources: Sequence[Path], *, force: bool) -> None:
    """Move the target and its companion files from the work folder into place.

    Existing companion files are replaced only together with an existing target. Without a target,
    they may belong to another model. `sources` are never replaced, nor are companion
    files that another model reads too.
    """
    paths = sorted(new.parent.iterdir(), key=lambda path: path == new)  # the target last
    moves = [(path, target.with_name(path.name)) for path in paths]
    moves = [(path, place) for path, place in moves if not _is_copy(path, place)]
    for _, place in moves:
        if place != target and os.path.lexists(place) and not os.path.lexists(target):
            raise ConversionError(
                f"{place}: is there already without {target.name}, so it may belong to another "
                "model. Move it or choose another folder."
            )
        check_target(place, force=force)
        is_companion = place != target and os.path.lexists(place)
        other = _find_other_owner(target, place) if is_companion else None
        if other is not None:
            raise ConversionError(
                f"{place}: may also belong to {other.name}. Choose another name or folder."
            )
        if any(place.exists() and source.exists() and place.samefile(source) for source in sources):
            raise ConversionError(f"{place}: is read by this command. Choose another target.")
    for path, place in moves:
        _move(path, place, new.parent.with_name(OLD))


def _find_other_owner(target: Path, place: Path) -> Path | None:
    """Find other weights that read a file beside a target, as x.hdf5 and x_weights.hdf5 do."""
    others = (path for path in sorted(target.parent.iterdir()) if path.name != target.name)
    return next((path for path in others if place in _list_read(path)), None)


def _list_read(weights: Path) -> list[Path]:
    """List the files beside weights that are read with them."""
    if weights.suffix == tensorflow.INDEX:
        return [weights.with_name(name) for name in (allennlp.OPTIONS, *tensorflow.VOCABULARIES)]
    if weights.suffix == allennlp.SUFFIXES[0]:
        places: list[tuple[Path, ...]] = [
            (allennlp.find_options(weights), weights.with_name(allennlp.OPTIONS))
        ]
    elif weights.suffix in bilm_hdf5.SUFFIXES and not weights.name.endswith(bilm_hdf5.SOFTMAX_NAME):
        names = (allennlp.OPTIONS, bilm_hdf5.VOCABULARY_NAME)
        places = [bilm_hdf5.list_places(weights, name) for name in names]
        places.append(bilm_hdf5.list_places(weights, bilm_hdf5.SOFTMAX_NAME)[:1])
    else:
        return []
    found = (next((path for path in some if path.exists()), None) for some in places)
    return [path for path in found if path is not None]


def _is_copy(path: Path, place: Path) -> bool:
    """Return whether an equal file is in place already, as after a killed run."""
    is_file = path.is_file() and place.is_file() and not place.is_symlink()
    return is_file and filecmp.cmp(path, place, shallow=False)


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

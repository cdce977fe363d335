"""Find the checkpoint in a file, a folder or an archive, and detect its format."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from convert.checkpoint import Checkpoint, ConversionError, Sources, list_some
from convert.fetch import is_archive, unpack
from convert.formats import allennlp, bilm_hdf5, hf_folder, many_langs, nlpl, tensorflow

HIDDEN = (".", "__MACOSX")  # prefixes of files that operating systems add
MAX_DEPTH = 4  # of nested folders


class Format(NamedTuple):
    """Checkpoint format.

    Attributes:
        name: Name for `--to` and the catalogue.
        recognises: Returns whether a path has this format, by a cheap test. Broken files also pass,
            so that `read` reports the problem.
        read: Reads a checkpoint and the files beside it.
    """

    name: str
    recognises: Callable[[Path], bool]
    read: Callable[[Sources], Checkpoint]


# In order: the first format that recognises a source reads it.
FORMATS = (
    Format(hf_folder.NAME, hf_folder.recognises, hf_folder.read_checkpoint),
    Format(bilm_hdf5.NAME, bilm_hdf5.recognises, bilm_hdf5.read_checkpoint),
    Format("tensorflow", tensorflow.recognises, tensorflow.read_checkpoint),
    Format("nlpl", nlpl.recognises, nlpl.read_checkpoint),
    Format("many-langs", many_langs.recognises, many_langs.read_checkpoint),
    Format("allennlp", allennlp.recognises, allennlp.read_checkpoint),
)


def find_format(path: Path) -> Format | None:
    """Find the format of a checkpoint; None = unknown."""
    return next((each for each in FORMATS if each.recognises(path)), None)


def find_checkpoint(path: Path, folder: Path) -> tuple[Path, Format]:
    """Find the only checkpoint in a file, folder or archive; unpack archives into `folder`."""
    known = find_format(path)
    if known is not None:
        return path, known
    if path.is_dir():
        return find_checkpoint(_find_one(path), folder)
    if not is_archive(path):
        names = ", ".join(each.name for each in FORMATS)
        raise ConversionError(f"{path}: unknown format; expected one of {names}, or an archive.")
    unpacked = folder / f"unpacked-{path.name}"
    unpack(path, unpacked)
    content = unpacked / path.stem
    if list(unpacked.iterdir()) == [content] and content.is_file():
        # Only a compressed file: the others, such as options, are beside it.
        for neighbour in path.absolute().parent.iterdir():
            if neighbour.is_file() and neighbour.name != content.name and neighbour != path:
                (unpacked / neighbour.name).symlink_to(neighbour)
        return find_checkpoint(content if find_format(content) else unpacked, folder)
    return find_checkpoint(unpacked, folder)


def _find_one(folder: Path) -> Path:
    """Find the only checkpoint in a folder, or else the only archive."""
    level, archives = [folder], list[Path]()
    for _ in range(MAX_DEPTH):
        entries = [entry for place in level for entry in sorted(place.iterdir())]
        entries = [entry for entry in entries if not entry.name.startswith(HIDDEN)]
        found = [entry for entry in entries if find_format(entry) is not None]
        # The writer of bilm-hdf5 puts the softmax beside the weights.
        found = [x for x in found if not x.name.endswith(bilm_hdf5.SOFTMAX_NAME)] or found
        if found:
            return _expect_one(folder, found)
        archives += [entry for entry in entries if is_archive(entry)]
        level = [entry for entry in entries if entry.is_dir()]
    return _expect_one(folder, archives)


def _expect_one(folder: Path, found: list[Path]) -> Path:
    if len(found) == 1:
        return found[0]
    names = list_some(path.relative_to(folder) for path in found)
    raise ConversionError(f"{folder}: expected one checkpoint in it, found {names}.")

"""Find the checkpoint in a file, a folder or an archive, and detect its format."""

import os
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from convert.formats import allennlp, bilm_hdf5, hf_folder, many_langs, nlpl, tensorflow
from convert.layout import ConversionError, Format, Writer
from convert.unpack import is_archive, link, unpack
from hf_elmo import ElmoConfig

HIDDEN = (".", "__MACOSX")  # prefixes of files that operating systems add
MAX_DEPTH = 4  # of nested folders
MAX_ENTRIES, MAX_FOLDERS = 10_000, 100  # limits of the search
MAX_NESTING = 2  # of archives inside archives

# In order: the first format that recognises a source opens it.
FORMATS = tuple(
    module.FORMAT for module in (hf_folder, bilm_hdf5, tensorflow, nlpl, many_langs, allennlp)
)


def find_reader(path: Path) -> Format | None:
    """Find the format of a checkpoint; None = unknown."""
    return next((reader for reader in FORMATS if reader.recognises(path)), None)


def find_writer(name: str) -> Writer:
    """Find the writer of a format by its name."""
    writers = {known.name: known.writer for known in FORMATS if known.writer is not None}
    if name not in writers:
        raise ConversionError(f"Expected a format of {', '.join(writers)} to write, got {name}.")
    return writers[name]


class Found(NamedTuple):
    """A checkpoint, its format, and the archives that contained it, outermost first."""

    path: Path
    reader: Format
    archives: tuple[Path, ...]


def find_checkpoint(path: Path, folder: Path, archives: tuple[Path, ...] = ()) -> Found:
    """Find the only checkpoint in a file, folder or archive; unpack archives.

    Args:
        path: File, folder, archive or compressed file.
        folder: Folder for unpacked archives.
        archives: Archives that have been unpacked already.

    Raises:
        ConversionError: If there is no checkpoint, or more than one.
        OSError: If a file cannot be read or written.
    """
    reader = find_reader(path)
    if reader is not None:
        return Found(path, reader, archives)
    if path.is_dir():
        _refuse_task_model(path)
        return find_checkpoint(_find_one(path), folder, archives)
    if not is_archive(path):
        raise ConversionError(f"{path}: unknown file format. See --list-formats.")
    if len(archives) == MAX_NESTING:
        names = " in ".join(archive.name for archive in (path, *reversed(archives)))
        raise ConversionError(
            f"{path}: expected at most {MAX_NESTING} nested archives, got {names}. "
            "Unpack it and convert its content."
        )
    unpacked = folder / f"unpacked{len(archives)}" / path.name
    unpacked.mkdir(parents=True)
    unpack(path, unpacked)
    content = unpacked if archives else _add_neighbours(path, unpacked)
    return find_checkpoint(content, folder, (*archives, path))


def _refuse_task_model(folder: Path) -> None:
    """Refuse the folder of another model of this package, in which checkpoints may be found."""
    kind = hf_folder.read_model_type(folder)
    if kind.startswith(f"{ElmoConfig.model_type}-"):
        raise ConversionError(
            f"{folder}: expected a biLM, got a model of the type {kind}. Convert the biLM with "
            "which it was trained. To write the model itself in another format, see python -m "
            "hf_elmo export."
        )


def _find_one(folder: Path) -> Path:
    """Find the only checkpoint in a folder, or else the only archive."""
    level, archives = [folder], list[Path]()
    for _ in range(MAX_DEPTH):
        entries = [
            entry
            for place in level
            for entry in sorted(islice(place.iterdir(), MAX_ENTRIES))
            if not entry.name.startswith(HIDDEN)
        ]
        found = [entry for entry in entries if find_reader(entry) is not None]
        # The writer of bilm-hdf5 puts the softmax beside the weights.
        found = [x for x in found if not x.name.endswith(bilm_hdf5.SOFTMAX_NAME)] or found
        if found:
            return _expect_one(folder, found)
        archives += [entry for entry in entries if is_archive(entry)]
        level = [entry for entry in entries if entry.is_dir()][:MAX_FOLDERS]
    return _expect_one(folder, archives)


def _expect_one(folder: Path, found: list[Path]) -> Path:
    if not found:
        names = ", ".join(sorted(entry.name for entry in islice(folder.iterdir(), 10)))
        raise ConversionError(
            f"{folder}: unknown format. See --list-formats. The folder contains: "
            f"{names or 'nothing'}."
        )
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in found[:10])
        raise ConversionError(
            f"{folder}: expected one checkpoint in it, found {names}. Choose one."
        )
    return found[0]


def _add_neighbours(path: Path, folder: Path) -> Path:
    """Link files beside a compressed file, such as options, into the folder of its content.

    Returns:
        The decompressed file if it is a checkpoint, so that no neighbour is taken for it; else the
        folder.
    """
    content = folder / path.stem
    if list(islice(folder.iterdir(), 2)) != [content] or not content.is_file():
        return folder
    for neighbour in islice(path.absolute().parent.iterdir(), MAX_ENTRIES):
        place = folder / neighbour.name
        if neighbour.is_file() and not os.path.lexists(place) and not is_archive(neighbour):
            link(neighbour, place)
    return folder if find_reader(content) is None else content

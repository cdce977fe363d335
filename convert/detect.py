"""Find the checkpoint in a file, a folder or an archive, and detect its format."""

from pathlib import Path
from types import ModuleType

from convert.checkpoint import ConversionError, list_some
from convert.fetch import is_archive, unpack
from convert.formats import allennlp, bilm_hdf5, hf_folder, many_langs, nlpl, tensorflow

HIDDEN = (".", "__MACOSX")  # prefixes of files that operating systems add
MAX_DEPTH = 4  # of nested folders


# In order: the first format that recognises a source reads it. Broken files are recognised too, so
# that the reader reports the problem.
FORMATS = {
    hf_folder.NAME: hf_folder,
    bilm_hdf5.NAME: bilm_hdf5,
    "tensorflow": tensorflow,
    "nlpl": nlpl,
    "many-langs": many_langs,
    "allennlp": allennlp,
}


def find_format(path: Path) -> ModuleType | None:
    """Find the format of a checkpoint; None = unknown."""
    return next((each for each in FORMATS.values() if each.recognises(path)), None)


def find_checkpoint(path: Path, folder: Path) -> tuple[Path, ModuleType]:
    """Find the only checkpoint in a file, folder or archive; unpack archives into `folder`."""
    if known := find_format(path):
        return path, known
    if path.is_dir():
        return find_checkpoint(_find_one(path), folder)
    if not is_archive(path):
        raise ConversionError(f"{path}: expected {', '.join(FORMATS)}, or an archive.")
    unpacked = folder / f"unpacked-{path.name}"
    unpack(path, unpacked)
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

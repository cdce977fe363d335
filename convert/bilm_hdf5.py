"""HDF5 files of bilm-tf and AllenNLP with their options, softmax and vocabulary, both ways."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from convert import bilm
from convert.checkpoint import (
    Checkpoint,
    ConversionError,
    FloatArray,
    Format,
    LazyTensor,
    Sources,
    WriteSettings,
)

SUFFIXES = (".hdf5", ".h5")
MAX_VARIABLES = 10_000
MAX_COMPRESSION = 1100  # deflate reaches 1,032 to 1


def recognises(path: Path) -> bool:
    """Tell an HDF5 file by its signature, a broken one by its name."""
    return path.is_file() and (path.suffix.lower() in SUFFIXES or h5py.is_hdf5(path))


# --- Variables of a file ---


@contextmanager
def open_variables(path: Path) -> Iterator[dict[str, LazyTensor]]:
    """Open the variables of an HDF5 file by their standard names.

    Raises:
        ConversionError: If the file is no whole HDF5 file, or points to other files.
    """
    if path.is_dir():
        raise ConversionError(f"{path}: expected an HDF5 file, got a folder.")
    if not h5py.is_hdf5(path):
        with path.open("rb") as file:
            start = file.read(8)
        raise ConversionError(f"{path}: expected an HDF5 file, got one that begins with {start!r}.")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ConversionError(f"{path}: expected a whole HDF5 file, got: {error}.") from error
    with file:
        yield _list_variables(path, file)


def _list_variables(path: Path, file: h5py.File) -> dict[str, LazyTensor]:
    links: list[tuple[str, Any]] = []

    def note(name: str, link: Any) -> bool | None:
        links.append((name, link))
        return True if len(links) > MAX_VARIABLES else None  # anything but None ends the visit

    file.visititems_links(note)
    if len(links) > MAX_VARIABLES:
        raise ConversionError(f"{path}: expected a biLM, got more than {MAX_VARIABLES} names.")
    variables: dict[str, LazyTensor] = {}
    for name, link in links:
        if not isinstance(link, h5py.HardLink):
            raise ConversionError(
                f"{path}: {name} is a link to another place or file; expected the numbers here."
            )
        item = file[name]
        if isinstance(item, h5py.Dataset):
            variable = _variable(path, name, item)
            if bilm.standard_name(name) in variables:
                raise ConversionError(f"{path}: {name} is there twice, under two names.")
            variables[bilm.standard_name(name)] = variable
    return variables


def _variable(path: Path, name: str, dataset: h5py.Dataset) -> LazyTensor:
    """Check, before anything is read, that a dataset holds its numbers and nothing else."""
    source = f"{path.name}: {name}"
    if dataset.dtype.kind != "f":
        raise ConversionError(f"{source}: expected floating-point numbers, got {dataset.dtype}.")
    if not dataset.shape:
        raise ConversionError(f"{source}: expected one axis or more, got {dataset.shape}.")
    if dataset.is_virtual or dataset.external:
        raise ConversionError(f"{source}: expected the numbers in this file, got a link to others.")
    stored, size = dataset.id.get_storage_size(), dataset.size * dataset.dtype.itemsize
    if size > stored * (MAX_COMPRESSION if dataset.chunks else 1):
        raise ConversionError(
            f"{source}: expected {size} bytes for shape {list(dataset.shape)}, "
            f"the file has {stored}."
        )

    def read_rows(start: int, stop: int) -> FloatArray:
        try:
            rows = dataset[start:stop]
        except OSError as error:
            raise ConversionError(f"{source}: cannot be read: {error}.") from error
        return np.asarray(rows, dtype=np.float32)

    return LazyTensor(source, dataset.shape, read_rows)


# --- Reading ---


@contextmanager
def open_checkpoint(sources: Sources) -> Iterator[Checkpoint]:
    """Open a biLM in bilm-tf's HDF5 format."""
    options_path = find_options(sources)
    options = bilm.read_options(options_path)
    with ExitStack() as stack:
        variables = stack.enter_context(open_variables(sources.checkpoint))
        yield bilm_checkpoint(options, variables, files=(sources.checkpoint, options_path))


def find_options(sources: Sources) -> Path:
    """Find the options of a weights file: named by the user, or beside it as AllenAI names them.

    Raises:
        ConversionError: If there are none.
    """
    path = sources.checkpoint
    candidates = [sources.options] if sources.options else option_paths(path)
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ConversionError(
        f"{path}: expected its options in {' or '.join(str(c) for c in candidates)}, found none. "
        "Name them with --options."
    )


def option_paths(weights: Path) -> list[Path]:
    """Name the places of a weights file's options; the first is where they are written."""
    stem = weights.stem
    own = stem[: -len("weights")] + "options" if stem.endswith("weights") else f"{stem}_options"
    return [weights.with_name(f"{own}.json"), weights.with_name("options.json")]


def bilm_checkpoint(
    options: dict[str, Any], variables: dict[str, LazyTensor], *, files: tuple[Path, ...]
) -> Checkpoint:
    """Gather a biLM from bilm-tf's options and variables."""
    others: dict[str, Any] = {}
    if "char_embed" in variables and options.get("char_cnn") is not None:
        # "n_characters" in the options is 261 or 262, and wrong in published models.
        others["char_vocab_size"] = variables["char_embed"].shape[0] + 1
    config = bilm.make_config(options, **others)
    parts = list(bilm.make_parts(config))
    tensors = bilm.take_parts(iter(parts), variables)
    surplus = set(variables) - {part.variable for part in parts}
    if surplus:
        raise ConversionError(f"Expected no variable {', '.join(sorted(surplus))} by the options.")
    return Checkpoint(config=config, tensors=tensors, files=files)


# --- Writing ---


def write_checkpoint(checkpoint: Checkpoint, path: Path, settings: WriteSettings) -> None:
    """Write weights in HDF5, and options.json beside them."""
    options = bilm.make_options(checkpoint.config)
    option_paths(path)[0].write_text(json.dumps(options, indent=2) + "\n", encoding="utf-8")
    with h5py.File(path, "x") as file:
        for part in bilm.make_parts(checkpoint.config):
            array = checkpoint.tensors[part.name].read()
            first, last = part.rows or (0, part.variable_shape[0])
            dataset = file.require_dataset(part.variable, part.variable_shape, "float32")
            dataset[first:last] = part.order.to_bilm(array)


FORMAT = Format(
    name="bilm-hdf5",
    description="weights.hdf5 + options.json of bilm-tf, AllenNLP, SeqVec and others",
    recognises=recognises,
    open=open_checkpoint,
    write=write_checkpoint,
)

"""From a checkpoint in any format to one in another: find the format, check, write, move."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from math import prod
from pathlib import Path

import numpy as np
from tqdm import tqdm

from convert import bilm_hdf5, hf_folder
from convert.checkpoint import (
    DTYPES,
    Checkpoint,
    ConversionError,
    FloatArray,
    Format,
    LazyTensor,
    Provenance,
    Sources,
    WriteSettings,
)

FORMATS = (hf_folder.FORMAT, bilm_hdf5.FORMAT)  # the first that recognises a source opens it


def convert_checkpoint(
    source: Path | str,
    target: Path | str,
    *,
    to: str = "huggingface",
    options: Path | str | None = None,
    vocabulary: Path | str | None = None,
    softmax: Path | str | None = None,
    token_embeddings: Path | str | None = None,
    dtype: str = "float32",
    weights_license: str | None = None,
    force: bool = False,
    progress: bool = False,
) -> Path:
    """Convert a biLM from one format to another.

    The target appears whole or not at all: it is written to a temporary folder beside it, then
    moved.

    Args:
        source: File or folder of the checkpoint.
        target: File or folder to write.
        to: Name of the target's format, of `FORMATS`.
        options: Options of a bilm-tf model; None = found beside the source.
        vocabulary: A word a line; None = found beside the source, where one is needed.
        softmax: Released softmax of a bilm-tf model; None = none.
        token_embeddings: File of bilm-tf's `dump_token_embeddings`, in place of the characters.
        dtype: Type of the numbers in the target: "float32", "float16" or "bfloat16".
        weights_license: Licence of the weights, for the model card; None = not known.
        force: Replace the target if it is there.
        progress: Show a progress bar.

    Returns:
        The target.

    Raises:
        ConversionError: If the source is broken or not a biLM, or the target's format cannot hold
            it, or the target is there already.
        OSError: If a file cannot be read or written.
    """
    sources = _sources(source, options, vocabulary, softmax, token_embeddings)
    writer = find_writer(to)
    if dtype not in DTYPES:
        raise ConversionError(f"Expected a dtype of {', '.join(DTYPES)}, got {dtype}.")
    target = Path(target)
    _check_target(target, force)
    reader = find_reader(sources.checkpoint)
    with _open(reader, sources) as checkpoint, _new_path(target, force) as path:
        provenance = _trace(reader, checkpoint)
        total = sum(prod(tensor.shape) for tensor in checkpoint.tensors.values())
        with tqdm(total=total * 4, unit="B", unit_scale=True, disable=not progress) as bar:
            watched = {name: _watch(t, bar) for name, t in checkpoint.tensors.items()}
            copy = replace(checkpoint, tensors=watched)
            _write(writer, copy, path, WriteSettings(dtype, weights_license, provenance))
    return target


def find_reader(path: Path) -> Format:
    """Find the format of a checkpoint.

    Raises:
        ConversionError: If it is of none, saying what it is.
    """
    if not path.exists():
        raise ConversionError(f"{path}: there is no such file or folder.")
    for candidate in FORMATS:
        if candidate.open is not None and candidate.recognises(path):
            return candidate
    kind = "a folder" if path.is_dir() else "a file"
    names = ", ".join(candidate.name for candidate in FORMATS if candidate.open is not None)
    raise ConversionError(f"{path}: is {kind} of no format that is known here ({names}).")


def find_writer(name: str) -> Format:
    """Find a format to write by its name.

    Raises:
        ConversionError: If there is none.
    """
    writers = {candidate.name: candidate for candidate in FORMATS if candidate.write is not None}
    if name not in writers:
        raise ConversionError(f"Expected a format of {', '.join(writers)} to write, got {name}.")
    return writers[name]


def _sources(source: Path | str, *others: Path | str | None) -> Sources:
    return Sources(Path(source), *(None if other is None else Path(other) for other in others))


@contextmanager
def _open(reader: Format, sources: Sources) -> Iterator[Checkpoint]:
    if reader.open is None:
        raise ConversionError(f"{reader.name} can be written, not read.")
    with reader.open(sources) as checkpoint:
        yield checkpoint


def _write(writer: Format, checkpoint: Checkpoint, path: Path, settings: WriteSettings) -> None:
    if writer.write is None:
        raise ConversionError(f"{writer.name} can be read, not written.")
    writer.write(checkpoint, path, settings)


def _trace(reader: Format, checkpoint: Checkpoint) -> Provenance:
    files = []
    for path in checkpoint.files:
        with path.open("rb") as file:
            files.append((path.name, hashlib.file_digest(file, "sha256").hexdigest()))
    return Provenance(reader.name, tuple(files), version("spacy-elmo"))


def _watch(tensor: LazyTensor, bar: "tqdm[None]") -> LazyTensor:
    """Check what is read of a tensor, and show it on the bar."""

    def read_rows(start: int, stop: int) -> FloatArray:
        rows = tensor.read_rows(start, stop)
        if not np.isfinite(rows).all():
            raise ConversionError(f"{tensor.source}: expected finite numbers, got NaN or infinity.")
        bar.update(rows.size * 4)
        return rows

    return replace(tensor, read_rows=read_rows)


# --- The target ---


def _check_target(target: Path, force: bool) -> None:
    if not target.parent.is_dir():
        raise ConversionError(f"{target}: expected the folder {target.parent} to be there.")
    if os.path.lexists(target) and not force:
        raise ConversionError(f"{target}: is there already. Replace it with --force.")
    if target.is_dir() and any(target.iterdir()) and not hf_folder.recognises(target):
        raise ConversionError(f"{target}: is a folder that holds something else than a model.")


@contextmanager
def _new_path(target: Path, force: bool) -> Iterator[Path]:
    """Give a path to write to; on success, move it and what lies beside it into place."""
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        new = Path(folder, "new")
        new.mkdir()
        yield new / target.name
        for path in new.iterdir():
            _check_target(target.with_name(path.name), force)
        for path in new.iterdir():
            place = target.with_name(path.name)
            if place.is_dir():
                place.rename(Path(folder, "old"))  # a folder is only replaced when empty
            path.replace(place)

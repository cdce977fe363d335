"""Format: HDF5 files of bilm-tf and AllenNLP, with options, softmax and vocabulary."""

import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path

import h5py
import numpy as np

from convert.formats import bilm_options, bilm_variables
from convert.formats.tensor_rearrangement import StoredTensor, list_stored_tensors
from convert.layout import (
    Checkpoint,
    ConversionError,
    FloatArray,
    Format,
    LazyTensor,
    Sources,
    Writer,
    WriteSettings,
)
from hf_elmo.language_model.vocabulary import write_words

SUFFIXES = (".hdf5", ".h5")
SOFTMAX_NAME, VOCABULARY_NAME = "softmax_weights.hdf5", "vocab.txt"
SIGNATURE = b"\x89HDF\r\n\x1a\n"
# Errors of h5py for broken files.
HDF5_ERRORS = (OSError, RuntimeError, LookupError, ValueError, TypeError, SystemError)
MAX_VARIABLES = 10_000
MAX_DEPTH = 20  # of groups in groups; a biLM has 6
MAX_CHUNK = 1 << 28  # bytes; h5py loads a complete chunk even to read a few rows
MAX_COMPRESSION = 1100  # deflate reaches 1,032 to 1


def recognises(path: Path) -> bool:
    """Recognise an HDF5 file by its signature or suffix, so that broken files are found too."""
    if not path.is_file():
        return False
    with path.open("rb") as file:  # `h5py.is_hdf5` also accepts a tar with an HDF5 file in it
        return path.suffix.lower() in SUFFIXES or file.read(len(SIGNATURE)) == SIGNATURE


# --- Variables of a file ---


@contextmanager
def open_variables(path: Path) -> Iterator[dict[str, LazyTensor]]:
    """Open the variables of an HDF5 file by their standard names."""
    if path.is_dir():
        raise ConversionError(f"{path}: expected an HDF5 file, got a folder.")
    if not h5py.is_hdf5(path):
        with path.open("rb") as file:
            start = file.read(8)
        raise ConversionError(
            f"{path}: expected an HDF5 file, got a file that starts with {start!r}."
        )
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ConversionError(f"{path}: expected a complete HDF5 file, got: {error}.") from error
    with file:
        try:
            variables = _list_variables(path, file)
        except ConversionError:
            raise
        except HDF5_ERRORS as error:
            raise ConversionError(
                f"{path}: expected a complete HDF5 file, got: {error}."
            ) from error
        yield variables


def _list_variables(path: Path, file: h5py.File) -> dict[str, LazyTensor]:
    """List the datasets without `visititems`, which takes minutes if groups are nested deeply."""
    variables: dict[str, LazyTensor] = {}
    groups, num_names = [("", file)], 0
    for prefix, group in groups:  # the loop extends this list
        num_names += len(group)
        if num_names > MAX_VARIABLES:
            raise ConversionError(f"{path}: expected a biLM, got more than {MAX_VARIABLES} names.")
        if prefix.count("/") > MAX_DEPTH:
            raise ConversionError(f"{path}: expected groups nested at most {MAX_DEPTH} deep.")
        for key in group:
            name = prefix + key
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise ConversionError(
                    f"{path}: expected values in {name}, got a link to another place or file."
                )
            item = group[key]
            if isinstance(item, h5py.Group):
                groups.append((f"{name}/", item))
            elif isinstance(item, h5py.Dataset):
                variable = _variable(path, name, item)
                if bilm_variables.standard_name(name) in variables:
                    raise ConversionError(f"{path}: found two variables for {name}.")
                variables[bilm_variables.standard_name(name)] = variable
    return variables


def _variable(path: Path, name: str, dataset: h5py.Dataset) -> LazyTensor:
    """Check a dataset without reading its values, and make a lazy tensor of it."""
    source = f"{path.name}: {name}"
    if dataset.dtype.kind != "f":
        raise ConversionError(f"{source}: expected floating-point values, got {dataset.dtype}.")
    if not dataset.shape:
        raise ConversionError(f"{source}: expected at least one axis, got {dataset.shape}.")
    if dataset.is_virtual or dataset.external:
        raise ConversionError(
            f"{source}: expected the values in this file, got a link to other files."
        )
    chunk = prod(dataset.chunks or ()) * dataset.dtype.itemsize
    if chunk > MAX_CHUNK:
        raise ConversionError(
            f"{source}: expected chunks of at most {MAX_CHUNK} bytes, got {chunk}. Copy the file "
            "with other chunks (h5repack)."
        )
    stored, size = dataset.id.get_storage_size(), dataset.size * dataset.dtype.itemsize
    if size > stored * (MAX_COMPRESSION if dataset.chunks else 1):
        raise ConversionError(
            f"{source}: expected {size} bytes for shape {list(dataset.shape)}, got {stored}."
        )

    def read_rows(start: int, stop: int) -> FloatArray:
        try:
            rows = dataset[start:stop]
        except HDF5_ERRORS as error:
            raise ConversionError(f"{source}: could not be read: {error}.") from error
        return np.asarray(rows, dtype=np.float32)

    return LazyTensor(source, dataset.shape, read_rows)


# --- Reading ---


@contextmanager
def open_checkpoint(sources: Sources) -> Iterator[Checkpoint]:
    """Open a biLM in bilm-tf's HDF5 format."""
    weights = sources.checkpoint
    options_path = sources.options or _find(weights, "options.json")
    if options_path is None:
        places = " or ".join(dict.fromkeys(map(str, list_places(weights, "options.json"))))
        raise ConversionError(
            f"{weights}: expected its options in {places}, found none. Pass them with --options."
        )
    options, files = bilm_options.read_options(options_path), [weights, options_path]
    with ExitStack() as stack:
        variables = stack.enter_context(open_variables(weights))
        if sources.token_embeddings is not None:
            table = stack.enter_context(open_variables(sources.token_embeddings))
            variables = _replace_encoder(variables, table, sources.token_embeddings)
            options = {**options, "char_cnn": None}
            files.append(sources.token_embeddings)
        vocabulary = sources.vocabulary or _find(weights, VOCABULARY_NAME)
        own_softmax = _find_own_softmax(sources, variables)
        has_words = sources.vocabulary or list_places(weights, VOCABULARY_NAME)[0].is_file()
        softmax_path = sources.softmax or (own_softmax if has_words else None)
        if softmax_path is not None:
            softmax = stack.enter_context(open_variables(softmax_path))
            variables = _add_softmax(variables, softmax, softmax_path)
            files.append(softmax_path)
        if sources.softmax is not None and vocabulary is None:
            raise ConversionError(
                f"{sources.softmax}: expected the softmax's vocabulary next to {weights}, found "
                "none. Pass it with --vocabulary."
            )
        checkpoint = bilm_variables.gather_checkpoint(
            options, variables, files=tuple(files), vocabulary=vocabulary
        )
        if own_softmax is not None and softmax_path is None:
            left_out = (*checkpoint.left_out, f"{own_softmax.name}: needs --vocabulary")
            checkpoint = replace(checkpoint, left_out=left_out)
        yield checkpoint


def list_places(weights: Path, name: str) -> tuple[Path, Path]:
    """List the possible paths of a file that belongs to the weights, such as options.json.

    The first path follows AllenAI: `x_options.json` for `x_weights.hdf5`. Writers use this path.
    The second path has the plain name.
    """
    stem = weights.stem
    prefix = stem.removesuffix("weights") if stem.endswith("weights") else f"{stem}_"
    return weights.with_name(prefix + name), weights.with_name(name)


def _find(weights: Path, name: str) -> Path | None:
    return next((place for place in list_places(weights, name) if place.is_file()), None)


def _find_own_softmax(sources: Sources, variables: dict[str, LazyTensor]) -> Path | None:
    """Find the softmax where the writer puts it."""
    if sources.softmax or sources.token_embeddings or any("softmax/" in x for x in variables):
        return None
    own = list_places(sources.checkpoint, SOFTMAX_NAME)[0]
    return own if own.is_file() else None


def _replace_encoder(
    variables: dict[str, LazyTensor], table: dict[str, LazyTensor], path: Path
) -> dict[str, LazyTensor]:
    """Replace the character encoder by the word vectors of `dump_token_embeddings`."""
    if list(table) != ["embedding"]:
        raise ConversionError(
            f"{path}: expected one variable, embedding, of bilm-tf's dump_token_embeddings; "
            f"found {', '.join(list(table)[:10]) or 'none'}."
        )
    return table | {name: variables[name] for name in variables if name.startswith("RNN_")}


def _add_softmax(
    variables: dict[str, LazyTensor], softmax: dict[str, LazyTensor], path: Path
) -> dict[str, LazyTensor]:
    if set(softmax) != {"softmax/W", "softmax/b"}:
        raise ConversionError(
            f"{path}: expected two variables, softmax/W and softmax/b; "
            f"found {', '.join(list(softmax)[:10]) or 'none'}."
        )
    twice = [name for name in softmax if name in variables]
    if twice:
        raise ConversionError(f"{path}: expected no {twice[0]}, because the weights contain one.")
    return variables | softmax


# --- Writing ---


def check_checkpoint(checkpoint: Checkpoint, target: Path, dtype: str) -> None:
    """Check that bilm-tf's format supports a biLM and the target."""
    if target.suffix.lower() not in SUFFIXES or target.is_dir():
        raise ConversionError(f"{target}: expected a file name that ends in .hdf5.")
    if dtype != "float32":
        raise ConversionError(f"Expected --dtype float32 for bilm-tf's format, got {dtype}.")
    bilm_options.make_options(checkpoint.config)
    bilm_options.check_characters(checkpoint)
    bilm_variables.check_words(checkpoint)
    if checkpoint.config.word_vocab_size and checkpoint.words is None:
        raise ConversionError(
            "Expected the words of the word table for bilm-tf's format, got none."
        )
    if checkpoint.words and checkpoint.target_words not in (None, checkpoint.words):
        raise ConversionError(
            "Expected one vocabulary for bilm-tf's format, got two: the softmax and the word table "
            "have different words."
        )
    has_softmax = "softmax.weight" in checkpoint.tensors
    has_words = checkpoint.words is not None or checkpoint.target_words is not None
    for name, is_written in ((SOFTMAX_NAME, has_softmax), (VOCABULARY_NAME, has_words)):
        place = list_places(target, name)[0]
        if place.exists() and not is_written:
            raise ConversionError(
                f"{place}: would be read with the new model, which has no such file. Move it, or "
                "choose another target."
            )
    config = checkpoint.config
    has_norm = config.mix_layer_norm != "none"
    if (
        checkpoint.mixes
        or has_norm
        or config.mix_gamma != 1
        or len(set(config.initial_mix_weights)) > 1
    ):
        warnings.warn(
            "bilm-tf's format cannot store a mix of layers: the mix is omitted.", stacklevel=2
        )


def write_checkpoint(checkpoint: Checkpoint, path: Path, settings: WriteSettings) -> None:
    """Write weights in HDF5, and next to them options, softmax and vocabulary."""
    options = bilm_options.make_options(checkpoint.config)
    text = json.dumps(options, indent=2) + "\n"
    list_places(path, "options.json")[0].write_text(text, encoding="utf-8")
    _write_stored(path, list_stored_tensors(checkpoint.config, bilm_variables.RULES), checkpoint)
    if "softmax.weight" in checkpoint.tensors:
        config = checkpoint.config
        expected = bilm_variables.list_stored_softmax(
            config.vocab_size, config.projection_size, is_shared=False
        )
        _write_stored(list_places(path, SOFTMAX_NAME)[0], expected, checkpoint)
    words = checkpoint.words or checkpoint.target_words
    if words is not None:
        write_words(list_places(path, VOCABULARY_NAME)[0], words)


def _write_stored(path: Path, expected: Iterable[StoredTensor], checkpoint: Checkpoint) -> None:
    # Use a Python file: HDF5's own file access ends the process if the disk is full.
    with path.open("xb+") as raw, h5py.File(raw, "w") as file:
        for stored in expected:
            tensor, first = checkpoint.tensors[stored.name], stored.rows[0]
            dataset = file.require_dataset(stored.variable, stored.variable_shape, "float32")
            for block in bilm_variables.read_as_stored(stored, tensor, checkpoint.config):
                dataset[first : first + len(block)] = block
                first += len(block)


FORMAT = Format(
    name="bilm-hdf5",
    description="weights.hdf5 and options.json of bilm-tf, AllenNLP, SeqVec and others",
    recognises=recognises,
    companions=("options", "vocabulary", "softmax", "token_embeddings"),
    open=open_checkpoint,
    writer=Writer(check_checkpoint, write_checkpoint),
)

"""Format: HDF5 files of bilm-tf and AllenNLP, with options, softmax and vocabulary."""

import json
import re
import warnings
from pathlib import Path

import h5py
import numpy as np

from convert.checkpoint import Checkpoint, ConversionError, FloatArray, Sources, list_some
from convert.formats import bilm_names
from convert.formats.bilm_options import make_options, read_options
from hf_elmo import ElmoConfig

NAME = "bilm-hdf5"
SUFFIXES = (".hdf5", ".h5")
SOFTMAX_NAME, VOCABULARY_NAME = "softmax_weights.hdf5", "vocab.txt"
# Fields of `ElmoConfig` that bilm-tf does not have, or has in the weights.
OTHER_FIELDS = re.compile(r"mix_|train_mix|num_scalar|.*_target_id|classifier|freeze|forget_bias")
SIGNATURE = b"\x89HDF\r\n\x1a\n"


def recognises(path: Path) -> bool:
    """Recognise an HDF5 file by its signature or suffix, so that broken files are found too."""
    if not path.is_file():
        return False
    with path.open("rb") as file:  # `h5py.is_hdf5` also accepts a tar with an HDF5 file in it
        return path.suffix.lower() in SUFFIXES or file.read(len(SIGNATURE)) == SIGNATURE


# --- Reading ---


def read_checkpoint(sources: Sources) -> Checkpoint:
    """Read a biLM in bilm-tf's HDF5 format."""
    weights = sources.checkpoint
    options = sources.options or _find(weights, "options.json")
    if options is None:
        places = " or ".join(path.name for path in list_places(weights, "options.json"))
        raise ConversionError(f"{weights}: expected {places} beside it. Pass it with --options.")
    files, variables = [weights, options], read_variables(weights)
    vocabulary = sources.vocabulary or _find(weights, VOCABULARY_NAME)
    softmax = sources.softmax
    if softmax is None and "softmax/b" not in variables:
        own = list_places(weights, SOFTMAX_NAME)[0]  # as written below
        softmax = own if own.is_file() else None
    if softmax is not None:
        layer = read_variables(softmax)
        if layer.keys() != {"softmax/W", "softmax/b"}:
            raise ConversionError(f"{softmax}: expected a softmax, found {list_some(layer)}.")
        variables |= layer
        files.append(softmax)
    if sources.softmax is not None and vocabulary is None:
        raise ConversionError(f"{softmax}: expected its words. Pass them with --vocabulary.")
    return bilm_names.make_checkpoint(NAME, read_options(options), variables, files, vocabulary)


def read_variables(path: Path) -> dict[str, FloatArray]:
    """Read the variables of an HDF5 file by their standard names."""
    variables: dict[str, FloatArray] = {}

    def read(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            variables[bilm_names.standard_name(name)] = item.astype(np.float32)[()]

    try:
        with h5py.File(path) as file:
            file.visititems(read)
    except (OSError, RuntimeError, LookupError, ValueError, TypeError) as error:
        raise ConversionError(f"{path}: expected a complete HDF5 file: {error}.") from error
    return variables


def list_places(weights: Path, name: str) -> tuple[Path, Path]:
    """List the possible paths of a file that belongs to the weights, such as options.json.

    The first path follows AllenAI: `x_options.json` for `x_weights.hdf5`. We write this one. The
    second path has the plain name.
    """
    stem = weights.stem
    prefix = stem.removesuffix("weights") if stem.endswith("weights") else f"{stem}_"
    return weights.with_name(prefix + name), weights.with_name(name)


def _find(weights: Path, name: str) -> Path | None:
    return next((place for place in list_places(weights, name) if place.is_file()), None)


# --- Writing ---


def list_files(target: Path) -> list[Path]:
    """List the files that are written for a target, or read with it."""
    names = ("options.json", VOCABULARY_NAME, SOFTMAX_NAME)
    return [target, *(list_places(target, name)[0] for name in names)]


def write_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write weights in HDF5, and beside them options, softmax and vocabulary."""
    config, words = checkpoint.config, checkpoint.tokenizer.word_vocab or checkpoint.target_words
    if checkpoint.mixes or config.mix_gamma != 1 or len(set(config.initial_mix_weights)) > 1:
        warnings.warn(
            "bilm-tf's format cannot store a mix of layers: the mix is omitted.", stacklevel=2
        )
    variables = bilm_names.make_variables(checkpoint.state, config)
    softmax = {name: variables.pop(name) for name in list(variables) if "softmax/" in name}
    options_path, vocabulary_path, softmax_path = list_files(path)[1:]
    text = json.dumps(make_options(config), indent=2) + "\n"
    options_path.write_text(text, encoding="utf-8")
    _write_variables(path, variables)
    if softmax:
        _write_variables(softmax_path, softmax)
    if words:
        vocabulary_path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    _check_by_reading(checkpoint, path)


def _check_by_reading(checkpoint: Checkpoint, path: Path) -> None:
    """Refuse a biLM if bilm-tf would read another one."""
    message = "bilm-tf's format does not support this model"
    try:
        again = read_checkpoint(Sources(path))
    except ValueError as error:
        raise ConversionError(f"{message}: {error}") from error
    words = checkpoint.target_words
    pairs = {
        name: (getattr(checkpoint.config, name), getattr(again.config, name))
        for name in ElmoConfig.__annotations__
        if not OTHER_FIELDS.match(name) and not (name == "vocab_size" and words is None)
    }
    for name in ("char_vocab", "word_vocab"):
        pairs[name] = (getattr(checkpoint.tokenizer, name), getattr(again.tokenizer, name))
    pairs["target_words"] = (words, again.target_words)
    if different := [name for name, (one, other) in pairs.items() if one != other]:
        raise ConversionError(f"{message}: it would change {', '.join(different)}.")


def _write_variables(path: Path, variables: dict[str, FloatArray]) -> None:
    # Use a Python file: HDF5's own file access ends the process if the disk is full.
    with path.open("xb+") as raw, h5py.File(raw, "w") as file:
        for name, array in variables.items():
            file.create_dataset(name, data=array)

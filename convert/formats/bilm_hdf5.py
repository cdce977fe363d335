"""Format: HDF5 files of bilm-tf and AllenNLP, with options, softmax and vocabulary."""

import json
import warnings
from pathlib import Path

import h5py
import numpy as np

from convert.checkpoint import Checkpoint, ConversionError, FloatArray, Sources
from convert.formats import bilm_names
from convert.formats.bilm_options import make_options, read_options
from hf_elmo import ElmoConfig

NAME = "bilm-hdf5"
SUFFIXES = (".hdf5", ".h5")
SOFTMAX_NAME, VOCABULARY_NAME = "softmax_weights.hdf5", "vocab.txt"
SPECIAL_CHAR_IDS = [name for name in ElmoConfig.__annotations__ if "char" in name and "_id" in name]
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
        variables |= read_variables(softmax)
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
    options, config = make_options(checkpoint.config), checkpoint.config
    words, target_words = checkpoint.tokenizer.word_vocab, checkpoint.target_words
    if words and target_words and words != target_words:
        raise ConversionError("bilm-tf has one vocabulary; this model's softmax has another one.")
    words = words or target_words
    _check_support(checkpoint, words or [])
    if checkpoint.mixes or config.mix_gamma != 1 or len(set(config.initial_mix_weights)) > 1:
        warnings.warn(
            "bilm-tf's format cannot store a mix of layers: the mix is omitted.", stacklevel=2
        )
    variables = bilm_names.make_variables(checkpoint.state, config)
    softmax = {name: variables.pop(name) for name in list(variables) if "softmax/" in name}
    options_path, vocabulary_path, softmax_path = list_files(path)[1:]
    options_path.write_text(json.dumps(options, indent=2) + "\n", encoding="utf-8")
    _write_variables(path, variables)
    if softmax:
        _write_variables(softmax_path, softmax)
    if words:
        vocabulary_path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")


def _check_support(checkpoint: Checkpoint, words: list[str]) -> None:
    """Refuse a biLM that bilm-tf would compute in another way."""
    config = checkpoint.config
    reads_words, reads_characters = config.word_embedding_size, config.char_embedding_size
    places = {word: row for row, word in enumerate(words, start=1)}
    marks = [places.get(x) for x in (bilm_names.SENTENCE_START, bilm_names.SENTENCE_END)]
    width = config.num_filters + config.word_embedding_size
    reasons = {
        "its characters are not bytes": reads_characters
        and (
            checkpoint.tokenizer.char_vocab is not None
            or any(getattr(config, x) != getattr(ElmoConfig, x) for x in SPECIAL_CHAR_IDS)
        ),
        "it reads both characters and words": reads_characters and reads_words,
        "it lacks <S> and </S> in the word table": reads_words
        and marks != [config.sentence_start_word_id, config.sentence_end_word_id],
        f"its token projection has equal input and output width, {width}, or follows words": (
            config.use_token_projection
            != (bool(reads_characters) and width != config.projection_size)
        ),
        "it projects cells to a size that is not smaller": config.use_cell_projection
        != (config.projection_size < config.cell_size),
    }
    if found := [reason for reason, applies in reasons.items() if applies]:
        raise ConversionError(f"bilm-tf's format does not support this model: {'; '.join(found)}.")
    for word in words:
        if word != word.strip() or word == bilm_names.SKIPPED_LINE or {"\n", "\r"} & {*word}:
            raise ConversionError(f"Expected words without surrounding whitespace, got {word!r}.")


def _write_variables(path: Path, variables: dict[str, FloatArray]) -> None:
    # Use a Python file: HDF5's own file access ends the process if the disk is full.
    with path.open("xb+") as raw, h5py.File(raw, "w") as file:
        for name, array in variables.items():
            file.create_dataset(name, data=array)

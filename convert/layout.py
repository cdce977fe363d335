"""Common layout for the content of all formats: configuration, tensors by name, vocabularies."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hf_elmo import ElmoConfig
from hf_elmo.files.safetensors_header import DTYPES

FloatArray = NDArray[np.floating[Any]]

BLOCK_SIZE = 1 << 24  # values per read: 64 MiB of float32


class ConversionError(ValueError):
    """Error of a conversion; the message says what was expected and found."""


@dataclass(frozen=True)
class LazyTensor:
    """Tensor whose rows are read from its file on demand.

    Attributes:
        source: File and name of the tensor, for messages.
        shape: Shape, with at least one axis.
        read_rows: Reads rows `start` to `stop` of the first axis.
    """

    source: str
    shape: tuple[int, ...]
    read_rows: Callable[[int, int], FloatArray]

    def read(self) -> FloatArray:
        """Read the complete tensor."""
        return self.read_rows(0, self.shape[0])

    def blocks(self) -> Iterator[FloatArray]:
        """Read the tensor in blocks of rows, to limit memory."""
        num_rows = max(1, BLOCK_SIZE // max(1, prod(self.shape[1:])))
        for start in range(0, self.shape[0], num_rows):
            yield self.read_rows(start, min(start + num_rows, self.shape[0]))


@dataclass(frozen=True)
class Sources:
    """Input files of a conversion: a checkpoint and its companions.

    Attributes:
        checkpoint: File or folder to convert.
        options: Options of the model; None = search next to the checkpoint.
        vocabulary: File with one word per line, in the row order of the word table or softmax; None
            = search next to the checkpoint.
        softmax: HDF5 file with the softmax of a bilm-tf model; None = the checkpoint's, or the
            converter's own file beside it, if any.
        token_embeddings: Word vectors of bilm-tf's `dump_token_embeddings`, which replace the
            character encoder; None = keep the encoder.
    """

    checkpoint: Path
    options: Path | None = None
    vocabulary: Path | None = None
    softmax: Path | None = None
    token_embeddings: Path | None = None


@dataclass(frozen=True)
class Mix:
    """Scalar mix that a task has learned: `gamma * sum_j softmax(weights)_j * layer_j`.

    Attributes:
        weights: Weights of layer 0 (the word vectors) and of each LSTM layer, before the softmax.
        gamma: Factor of the sum.
        layer_norm: Whether the layers are normalised over the batch before the sum.
    """

    weights: tuple[float, ...]
    gamma: float
    layer_norm: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """A biLM in the common layout. Its tensors can be read while the source is open.

    Attributes:
        config: Configuration of the biLM.
        tensors: Tensors by their names in the state dict of `ElmoModel`, and `softmax.weight` and
            `softmax.bias` of `ElmoForPreTraining` if there is a softmax.
        files: Files that were read, for the model card.
        words: Words of the word table, without row 0 (padding).
        characters: Characters of the character table, without row 0 (padding); None = bytes.
        target_words: Words of the softmax.
        tokenizer: Other arguments of `ElmoTokenizer`, such as `unknown="<oov>"`.
        mixes: Learned scalar mixes by name.
        left_out: Parts of the source that the common layout omits, one line each.
        origin: Sentences on the origin of the biLM, for the model card.
        languages: Languages of the biLM, as spaCy's codes.
    """

    config: ElmoConfig
    tensors: Mapping[str, LazyTensor]
    files: tuple[Path, ...]
    words: tuple[str, ...] | None = None
    characters: tuple[str, ...] | None = None
    target_words: tuple[str, ...] | None = None
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    mixes: Mapping[str, Mix] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    origin: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()


def add_mixes(checkpoint: Checkpoint, mixes: Mapping[str, Mix]) -> Checkpoint:
    """Add learned mixes to a checkpoint; if there is only one, also set it in the configuration.

    Raises:
        ConversionError: If a mix does not fit the biLM.
    """
    num_layers = checkpoint.config.num_mixed_layers
    for name, mix in mixes.items():
        if len(mix.weights) != num_layers:
            raise ConversionError(
                f"{name}: expected weights for {num_layers} layers, got {len(mix.weights)}."
            )
        if not all(map(isfinite, (*mix.weights, mix.gamma))):
            raise ConversionError(f"{name}: expected finite values, got {mix}.")
    config = copy.deepcopy(checkpoint.config)
    if len(mixes) == 1:
        (mix,) = mixes.values()
        config.mix_weights, config.mix_gamma = list(mix.weights), mix.gamma
        if mix.layer_norm != (config.mix_layer_norm != "none"):
            config.mix_layer_norm = "batch" if mix.layer_norm else "none"
    return replace(checkpoint, config=config, mixes=mixes)


def configured_mix(config: ElmoConfig) -> Mix:
    """Return the scalar mix that a configuration describes."""
    return Mix(tuple(config.initial_mix_weights), config.mix_gamma, config.mix_layer_norm != "none")


@dataclass(frozen=True)
class WriteSettings:
    """Settings for writing a checkpoint, and its origin for the model card.

    Attributes:
        dtype: Data type, one of `NUMBER_SIZES`.
        weights_license: Licence of the weights; None = unknown.
        source: Name of the source: file, folder, published model, Hub name, or address.
        format: Name of the source's format.
        files: Name and SHA-256 of each file that was read.
    """

    dtype: str
    weights_license: str | None
    source: str
    format: str
    files: tuple[tuple[str, str], ...]


NUMBER_SIZES = {name: DTYPES[name][1] for name in ("float32", "float16", "bfloat16")}  # bytes


class Writer(NamedTuple):
    """Functions that write a format.

    Attributes:
        check: Raises ConversionError if the format does not support a checkpoint, target or dtype.
            It is called before anything is written.
        write: Writes a checkpoint to a new file or folder, and other files next to it if needed.
    """

    check: Callable[[Checkpoint, Path, str], None]
    write: Callable[[Checkpoint, Path, WriteSettings], None]


@dataclass(frozen=True)
class Format:
    """Checkpoint format.

    Attributes:
        name: Value of `--to`.
        description: Text of `--list-formats`.
        recognises: Returns whether a path has this format, by a cheap test. Broken files also pass,
            so that `open` can report the problem.
        open: Opens a checkpoint; its tensors can be read until the context ends. Raises
            ConversionError if a file is missing, broken, or does not belong to the others.
        companions: Fields of `Sources` that `open` reads besides `checkpoint`.
        writer: Functions that write the format; None = the format can only be read.
    """

    name: str
    description: str
    recognises: Callable[[Path], bool]
    open: Callable[[Sources], AbstractContextManager[Checkpoint]]
    companions: tuple[str, ...] = ("options", "vocabulary")
    writer: Writer | None = None

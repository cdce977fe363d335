"""The common layout between formats: a configuration, tensors by name, vocabularies."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_elmo import ElmoConfig
from hf_elmo.files.safetensors_header import DTYPES

FloatArray = NDArray[np.floating[Any]]

BLOCK_SIZE = 1 << 24  # numbers read at once: 64 MiB of float32


class ConversionError(ValueError):
    """A checkpoint that cannot be converted: what was expected, what was found, what to do."""


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that stays in its file until its rows are read.

    Attributes:
        source: Its name in its own file, for messages.
        shape: Its shape, at least one axis.
        read_rows: Reads rows `start` to `stop` of the first axis.
    """

    source: str
    shape: tuple[int, ...]
    read_rows: Callable[[int, int], FloatArray]

    def read(self) -> FloatArray:
        """Read the whole tensor."""
        return self.read_rows(0, self.shape[0])

    def blocks(self) -> Iterator[FloatArray]:
        """Read the tensor in order, some rows at a time, so that memory stays bounded."""
        num_rows = max(1, BLOCK_SIZE // max(1, prod(self.shape[1:])))
        for start in range(0, self.shape[0], num_rows):
            yield self.read_rows(start, min(start + num_rows, self.shape[0]))


@dataclass(frozen=True)
class Sources:
    """What the user names: a checkpoint and the files that go with it.

    Attributes:
        checkpoint: The file or folder to convert.
        options: The options of a bilm-tf model; None = found beside the checkpoint.
        vocabulary: A word a line, in the order of the word table or softmax; None = found beside.
        softmax: The released softmax of a bilm-tf model; None = convert without one.
        token_embeddings: What bilm-tf's `dump_token_embeddings` wrote: word vectors that replace
            the character encoder; None = keep the encoder.
    """

    checkpoint: Path
    options: Path | None = None
    vocabulary: Path | None = None
    softmax: Path | None = None
    token_embeddings: Path | None = None


@dataclass(frozen=True)
class Mix:
    """A scalar mix that a task learned: `gamma * sum_j softmax(weights)_j * layer_j`.

    Attributes:
        weights: A number for the word vectors and for each LSTM layer, before the softmax.
        gamma: Factor of the sum.
        layer_norm: Whether the layers are normalised first, over the whole batch.
    """

    weights: tuple[float, ...]
    gamma: float
    layer_norm: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """A biLM on its way from one format to another; its tensors are read while it is open.

    Attributes:
        config: Sizes, special ids, the mix.
        tensors: By the state dict names of `ElmoModel`; the softmax of `ElmoForPreTraining`, if
            any, is `softmax.weight` and `softmax.bias` beside them.
        files: The files that were read, for the model card.
        words: Word of each row of the word table but the row 0.
        characters: Character of each row of the character table but the row 0, where these are
            not bytes.
        target_words: Word of each row of the softmax.
        tokenizer: Arguments of `ElmoTokenizer` that neither configuration nor vocabularies tell,
            such as `unknown="<oov>"`.
        mixes: Scalar mixes that tasks learned, by name.
        left_out: What the source holds and the common layout does not, a line each.
        origin: What the source tells of where the biLM comes from, a sentence each.
        languages: The codes of its languages, as spaCy has them.
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
    """Add the mixes that tasks learned; where there is only one, configure it.

    Raises:
        ConversionError: If a mix does not fit the biLM.
    """
    num_layers = checkpoint.config.num_mixed_layers
    for name, mix in mixes.items():
        if len(mix.weights) != num_layers:
            raise ConversionError(
                f"{name}: expected weights of {num_layers} layers, got {len(mix.weights)}."
            )
        if not all(map(isfinite, (*mix.weights, mix.gamma))):
            raise ConversionError(f"{name}: expected finite numbers, got {mix}.")
    config = copy.deepcopy(checkpoint.config)
    if len(mixes) == 1:
        (mix,) = mixes.values()
        config.mix_weights, config.mix_gamma = list(mix.weights), mix.gamma
        config.mix_layer_norm = "batch" if mix.layer_norm else "none"
    return replace(checkpoint, config=config, mixes=mixes)


def configured_mix(config: ElmoConfig) -> Mix:
    """Return the mix that is configured."""
    return Mix(tuple(config.initial_mix_weights), config.mix_gamma, config.mix_layer_norm != "none")


@dataclass(frozen=True)
class Provenance:
    """Where a checkpoint came from, for the model card.

    Attributes:
        source: Name of the file or folder, or on the Hub.
        format: Name of its format.
        files: Name and SHA-256 of each file that was read.
        version: Version of this package.
    """

    source: str
    format: str
    files: tuple[tuple[str, str], ...]
    version: str


@dataclass(frozen=True)
class WriteSettings:
    """How a checkpoint is written.

    Attributes:
        dtype: Type of the numbers, of `NUMBER_SIZES`.
        weights_license: Their licence; None = not known.
        provenance: Where the checkpoint came from.
    """

    dtype: str
    weights_license: str | None
    provenance: Provenance


NUMBER_SIZES = {name: DTYPES[name][1] for name in ("float32", "float16", "bfloat16")}  # bytes


def _cannot_open(sources: Sources) -> AbstractContextManager[Checkpoint]:
    raise ConversionError(f"{sources.checkpoint}: is of a format that can only be written.")


def _cannot_write(checkpoint: Checkpoint, path: Path, settings: WriteSettings) -> None:
    raise ConversionError(f"{path}: is of a format that can only be read.")


def _accept_any(checkpoint: Checkpoint, target: Path, dtype: str) -> None:
    """Raise nothing."""


@dataclass(frozen=True)
class Format:
    """A format that `convert` reads, writes, or both.

    Attributes:
        name: What `--to` takes.
        description: What `--list-formats` says.
        recognises: Whether a path holds this format, by its content as far as that is cheap. It
            also claims broken files of its kind, so that `open` can say what is wrong.
        companions: Which of the `Sources` beside the checkpoint `open` reads.
        open: Opens a checkpoint; its tensors are read until the context ends.
        write: Writes a checkpoint to a new path (a file, or a folder that it makes), in a new
            folder where it may put other files beside it.
        check: Raises ConversionError for a checkpoint, target or dtype that the format cannot
            hold; called before anything is written.
    """

    name: str
    description: str
    recognises: Callable[[Path], bool] = lambda path: False
    companions: tuple[str, ...] = ("options", "vocabulary")
    open: Callable[[Sources], AbstractContextManager[Checkpoint]] = _cannot_open
    write: Callable[[Checkpoint, Path, WriteSettings], None] = _cannot_write
    check: Callable[[Checkpoint, Path, str], None] = _accept_any

    @property
    def is_readable(self) -> bool:
        """Whether it has a reader."""
        return self.open is not _cannot_open

    @property
    def is_writable(self) -> bool:
        """Whether it has a writer."""
        return self.write is not _cannot_write

"""The content of a checkpoint in the names of `hf_elmo`, as every reader returns it."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hf_elmo import ElmoConfig, ElmoTokenizer

FloatArray = NDArray[np.floating[Any]]


class ConversionError(ValueError):
    """Error of a conversion; the message names the file."""


@dataclass(frozen=True)
class Sources:
    """Paths of a checkpoint and of its other files; None = search beside the checkpoint."""

    checkpoint: Path
    options: Path | None = None
    vocabulary: Path | None = None
    softmax: Path | None = None


@dataclass(frozen=True)
class Mix:
    """Scalar mix that a task has learned: `gamma * sum_j softmax(weights)_j * layer_j`."""

    weights: list[float]
    gamma: float
    layer_norm: bool = False


@dataclass
class Checkpoint:
    """A biLM in the layout of `hf_elmo`.

    The tensors have their names in `ElmoModel`, or `softmax.weight` and `softmax.bias`. They are
    contiguous, share no memory, and are of one data type.
    """

    format: str
    config: ElmoConfig
    state: dict[str, Tensor]
    tokenizer: ElmoTokenizer
    files: list[Path]  # that were read
    target_words: list[str] | None = None  # one for each row of the softmax
    mixes: dict[str, Mix] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # omitted parts of the source
    origin: list[str] = field(default_factory=list)  # sentences for the model card
    languages: list[str] = field(default_factory=list)  # spaCy's codes
    source: str = ""  # file, folder, published model, Hub name or address
    difference: float | None = None  # from the activations of `--verify`

    def add_mixes(self, mixes: Mapping[str, Mix]) -> None:
        """Add learned mixes; if there is only one, also set it in the configuration."""
        self.mixes = dict(mixes)
        if len(mixes) == 1:
            (mix,) = mixes.values()
            self.config.mix_weights, self.config.mix_gamma = mix.weights, mix.gamma
            if mix.layer_norm != (self.config.mix_layer_norm != "none"):
                self.config.mix_layer_norm = "batch" if mix.layer_norm else "none"
            self.config.validate()


def make_state(arrays: Mapping[str, FloatArray]) -> dict[str, Tensor]:
    """Make float32 tensors of arrays."""
    return {
        name: torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
        for name, array in arrays.items()
    }


def list_numbered(pattern: str, names: Container[str]) -> list[str]:
    """List the names with the numbers 0, 1, 2, ... in them, up to the first missing one."""
    return list(takewhile(names.__contains__, map(pattern.format, count())))


def list_some(names: Iterable[object], limit: int = 10) -> str:
    """List the first names of many, for a message."""
    every = [str(name) for name in names]
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return ", ".join(every[:limit]) + more or "none"

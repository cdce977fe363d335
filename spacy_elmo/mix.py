"""Configured mix of the layers, for `doc.tensor`."""

from collections.abc import Mapping
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

if TYPE_CHECKING:  # as in stored_bilm.py
    from hf_elmo import ElmoConfig


class MixSettings(NamedTuple):
    """Settings of a scalar mix (Peters et al. 2018, eq. 1).

    Attributes:
        layers: Indices of the layers to mix: 0 = word vectors, -1 = top layer; None = all.
        weights: Weight of each of these layers, before the softmax; None = the model's own mix.
        gamma: Factor of the weighted sum; None = the model's own.
    """

    layers: list[int] | None = None
    weights: list[float] | None = None
    gamma: float | None = None

    @classmethod
    def from_config(cls, settings: Mapping[str, Any]) -> Self:
        """Make the settings from the configuration's `mix`, and check them.

        Raises:
            ValueError: If a key is unknown, a value has the wrong type, `layers` is empty, or
                `weights` and `layers` differ in length.
        """
        unknown = sorted(settings.keys() - set(cls._fields))
        if unknown:
            raise ValueError(f"Expected {', '.join(cls._fields)} in mix, got {', '.join(unknown)}.")
        mix = cls(**settings)
        _check_kind("layers", mix.layers, _are_all(int, mix.layers), "a list of whole numbers")
        _check_kind("weights", mix.weights, _are_all(Real, mix.weights), "a list of numbers")
        _check_kind("gamma", mix.gamma, isinstance(mix.gamma, Real), "a number")
        if mix.layers == []:
            raise ValueError("Expected at least one layer to mix, got none.")
        if mix.layers and mix.weights is not None and len(mix.layers) != len(mix.weights):
            raise ValueError(
                f"Expected {len(mix.layers)} mix weights, one a layer, got {len(mix.weights)}."
            )
        return mix


def _are_all(kind: type, values: object) -> bool:
    return isinstance(values, list | tuple) and all(
        isinstance(value, kind) and not isinstance(value, bool) for value in values
    )


def _check_kind(name: str, value: object, is_right: bool, kind: str) -> None:
    if value is not None and not is_right:
        raise ValueError(f"Expected mix.{name} to be {kind}, or null, got {value!r}.")


def mix_words(layers: Tensor, mix: MixSettings, config: "ElmoConfig") -> Tensor:
    """Mix the layers of the words of one sentence.

    Args:
        layers: Shape `(layers, words, width)`.
        mix: Settings.
        config: Configuration of the biLM; its mix is the default.

    Returns:
        Shape `(words, width)`.

    Raises:
        ValueError: If the mix does not fit the number of layers.
    """
    from hf_elmo.array_operations import stack
    from hf_elmo.scalar_mix import mix_layers

    numbers = list(range(len(layers))) if mix.layers is None else mix.layers
    if not all(-len(layers) <= number < len(layers) for number in numbers):
        raise ValueError(
            f"Expected mix layers from 0 (word vectors) to {len(layers) - 1} (the top), "
            f"got {mix.layers}."
        )
    own = config.initial_mix_weights
    if mix.layers is not None:  # an excluded layer (-inf) gets weight 0
        own = [weight if isfinite(weight) else 0.0 for weight in own]
    weights = [own[number] for number in numbers] if mix.weights is None else mix.weights
    if len(weights) != len(numbers):
        raise ValueError(
            f"Expected {len(numbers)} mix weights (the word vectors and each LSTM layer), "
            f"got {len(weights)}."
        )
    chosen = layers if mix.layers is None else stack([layers[n] for n in numbers])
    return mix_layers(
        chosen[:, None],
        torch.tensor(weights, dtype=torch.float32, device=layers.device),
        config.mix_gamma if mix.gamma is None else mix.gamma,
        # Layer norm over a batch would make vectors depend on the other sentences.
        layer_norm="none" if config.mix_layer_norm == "none" else "sentence",
    )[0]

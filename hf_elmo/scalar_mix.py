"""The scalar mix: a weighted sum of the biLM's layers (Peters et al. 2018, eq. 1)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import initialization

from .array_operations import sum_weighted
from .configuration_elmo import ElmoConfig

LAYER_NORMS = ("none", "sentence", "batch")
LAYER_NORM_EPSILON = 1e-12  # bilm/elmo.py, weight_layers
# Weight of a layer that is left out. Its share is exactly 0, as with minus infinity, which averages
# of weights and some optimisers turn into NaN.
LEFT_OUT = -1e4


def mix_layers(
    layers: Tensor,
    weights: Tensor,
    gamma: Tensor | float,
    *,
    layer_norm: str = "none",
    mask: Tensor | None = None,
) -> Tensor:
    """Sum the layers of each token (Peters et al. 2018, eq. 1): `gamma * sum_j softmax(w)_j * h_j`.

    Args:
        layers: h, shape `(layers, batch, tokens, width)`.
        weights: w, one value per layer, before the softmax, shape `(layers,)`.
        gamma: Factor of the sum.
        layer_norm: `"none"`; `"sentence"`: mean and variance over each sentence's words;
            `"batch"`: over all words of the batch, as bilm-tf's `weight_layers` does.
        mask: 1 where a row is a word, shape `(batch, tokens)`; None = everywhere.

    Returns:
        Shape `(batch, tokens, width)`. With layer norm, rows that are not words are zeros.
    """
    _check_layer_norm(layer_norm)
    if layer_norm != "none":
        layers = _normalize_layers(layers, layer_norm, mask)
    return gamma * sum_weighted(weights.softmax(dim=0).to(layers.dtype), layers)


def mix_as_configured(config: ElmoConfig, layers: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mix layers `(layers, batch, tokens, width)` with the configured weights and layer norm."""
    dtype = torch.promote_types(layers.dtype, torch.float32)
    weights = torch.tensor(config.initial_mix_weights, dtype=dtype, device=layers.device)
    norm = config.mix_layer_norm
    return mix_layers(layers, weights, config.mix_gamma, layer_norm=norm, mask=mask)


def _check_layer_norm(layer_norm: str) -> None:
    if layer_norm not in LAYER_NORMS:
        raise ValueError(f"Expected a layer_norm of {LAYER_NORMS}, got {layer_norm!r}.")


def _normalize_layers(layers: Tensor, layer_norm: str, mask: Tensor | None) -> Tensor:
    dtype = layers.dtype
    layers = layers.to(torch.promote_types(dtype, torch.float32))  # sums in float16 overflow
    axes = (2, 3) if layer_norm == "sentence" else (1, 2, 3)
    keep = torch.ones_like(layers[0, ..., :1]) if mask is None else mask[..., None].to(layers.dtype)
    count = (keep.sum(dim=[axis - 1 for axis in axes], keepdim=True) * layers.shape[-1]).clamp(1)
    mean = (layers * keep).sum(dim=axes, keepdim=True) / count
    centred = (layers - mean) * keep
    variance = centred.square().sum(dim=axes, keepdim=True) / count
    return (centred * torch.rsqrt(variance + LAYER_NORM_EPSILON)).to(dtype)


class ElmoScalarMix(nn.Module):
    """A task's own weighted sum of the biLM's layers (Peters et al. 2018, eq. 1).

    Computes `gamma * sum_j softmax(weights)_j * layer_j`, then dropout.

    Args:
        num_layers: Number of layers to mix, with the word vectors.
        weights: Initial weights before the softmax; None = zeros, the mean of the layers. Minus
            infinity leaves a layer out.
        gamma: Initial factor.
        layer_norm: As in `mix_layers`.
        dropout: Dropout probability of the mix.
        train_weights: Whether the weights are trained. The weight of a single layer never is.
        train_gamma: Whether gamma is trained.

    Raises:
        ValueError: If the number of weights is not the number of layers, or `layer_norm` is
            another value.
    """

    def __init__(
        self,
        num_layers: int,
        *,
        weights: Sequence[float] | None = None,
        gamma: float = 1.0,
        layer_norm: str = "none",
        dropout: float = 0.0,
        train_weights: bool = True,
        train_gamma: bool = True,
    ) -> None:
        super().__init__()
        chosen = [0.0] * num_layers if weights is None else weights
        self.initial_weights = [max(float(weight), LEFT_OUT) for weight in chosen]
        self.initial_gamma = float(gamma)
        if len(self.initial_weights) != num_layers:
            raise ValueError(f"Expected {num_layers} weights, got {len(self.initial_weights)}.")
        _check_layer_norm(layer_norm)
        self.layer_norm = layer_norm
        num_mixed = sum(weight > LEFT_OUT for weight in self.initial_weights)
        self.train_weights = train_weights and num_mixed > 1
        self.train_gamma = train_gamma
        self.weights = nn.Parameter(torch.tensor(self.initial_weights))
        self.gamma = nn.Parameter(torch.tensor([self.initial_gamma]))
        self.freeze()
        self.dropout = nn.Dropout(dropout)

    def freeze(self) -> None:
        """Exclude the weights and gamma from training, if they are not to be trained."""
        self.weights.requires_grad_(self.train_weights)
        self.gamma.requires_grad_(self.train_gamma)

    def set_initial_values(self) -> None:
        """Set weights and gamma to their initial values."""
        initialization.copy_(self.weights, torch.tensor(self.initial_weights))
        initialization.constant_(self.gamma, self.initial_gamma)

    def forward(self, layers: Sequence[Tensor] | Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix the layers of each token.

        Args:
            layers: Layer outputs, shape `(layers, batch, tokens, width)`, or a sequence of them.
            mask: 1 where a row is a word, shape `(batch, tokens)`; used by layer norm.

        Returns:
            Embeddings, shape `(batch, tokens, width)`.

        Raises:
            ValueError: If the number of layers differs from the number of weights.
        """
        if len(layers) != len(self.weights):
            raise ValueError(f"Expected {len(self.weights)} layers to mix, got {len(layers)}.")
        stacked = layers if isinstance(layers, Tensor) else torch.stack(list(layers))
        # `requires_grad` is not enough: peft sets it again.
        weights = self.weights if self.train_weights else self.weights.detach()
        gamma = self.gamma if self.train_gamma else self.gamma.detach()
        mixed = mix_layers(stacked, weights, gamma, layer_norm=self.layer_norm, mask=mask)
        return self.dropout(mixed)

    def penalty(self) -> Tensor:
        """Sum the squares of the weights: `||w||^2` in the paper, without its factor lambda.

        Added to a loss, this sum keeps the mix near the layers' mean (Peters et al. 2018, 3.3).
        The weight of a layer that is left out counts as 0.
        """
        return self.weights.where(self.weights > LEFT_OUT / 2, 0.0).square().sum()

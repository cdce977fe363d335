"""Outputs of the models."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers.utils.generic import ModelOutput

from .lstm import State


class ElmoState(NamedTuple):
    """State of the LSTMs after a call, with which the next call can continue.

    Each direction is `(h, c)`: h of shape `(layers, batch, projection_size)`, c of shape
    `(layers, batch, cell_size)`.
    """

    forward: State
    backward: State | None

    def map(self, change: Callable[[Tensor], Tensor]) -> "ElmoState":
        """Apply a function to each tensor."""
        (h, c), backward = self
        return ElmoState(
            (change(h), change(c)), backward and (change(backward[0]), change(backward[1]))
        )


class LostState:
    """Stands for the state of an output that another program has rebuilt from its keys.

    A model refuses it. With None, the model would start from zeros.
    """


class StatefulOutput(ModelOutput):
    """Output with an attribute `state` that is neither a key nor a part of the tuple.

    Pipelines and Trainer treat row i of every key's value as the row of sentence i. The first axis
    of a state is the layer, so the state must not be a key.
    """

    state: ElmoState | None

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]  # transformers' own
        if "state" in self:
            OrderedDict.__delitem__(self, "state")
        if self.state is None:
            self.state = LostState()  # type: ignore[assignment]  # refused by models

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Self:
        """Return the output on a device, with its state: accelerate calls this after offloading."""
        values = {**self, "state": self.state}
        moved = tree_map_only(Tensor, lambda x: x.to(device, non_blocking=non_blocking), values)
        return type(self)(**moved)


@dataclass
class ElmoModelOutput(StatefulOutput):
    """Output of `ElmoModel`.

    Attributes:
        last_hidden_state: The top layer, shape `(batch, tokens, hidden_size)`.
        elmo: The configured mix of the layers, shape `(batch, tokens, hidden_size)`.
        hidden_states: On request, the word vectors (twice side by side if bidirectional) and
            each LSTM layer: `num_hidden_layers + 1` tensors `(batch, tokens, hidden_size)`.
        state: The LSTMs' state after `</S>` (forward) or `<S>` (backward); an attribute, not a key.
        attention_mask: 1 where a row is a word, shape `(batch, tokens)`. With
            `keep_sentence_boundaries`, shape `(batch, tokens + 2)`, and 1 at boundaries too.
    """

    # transformers wants None as the default.
    last_hidden_state: Tensor = None  # type: ignore[assignment]
    elmo: Tensor = None  # type: ignore[assignment]
    hidden_states: tuple[Tensor, ...] | None = None
    state: ElmoState | None = None
    attention_mask: Tensor = None  # type: ignore[assignment]


@dataclass
class ElmoForPreTrainingOutput(StatefulOutput):
    """Output of `ElmoForPreTraining`.

    Attributes:
        loss: Mean of the directions' cross entropies; None without labels.
        forward_logits: Scores of the next word, before the softmax, for `<S>` and then each word,
            shape `(batch, tokens + 1, vocab_size)`.
        backward_logits: Scores of the previous word, before the softmax, for each word and then
            `</S>`, shape `(batch, tokens + 1, vocab_size)`; None if unidirectional.
        hidden_states: As in `ElmoModelOutput`.
        state: As in `ElmoModelOutput`.
    """

    loss: Tensor | None = None
    forward_logits: Tensor | None = None
    backward_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    state: ElmoState | None = None

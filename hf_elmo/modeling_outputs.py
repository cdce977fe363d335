"""Outputs of the models."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from transformers.utils.generic import ModelOutput

from .lstm import State


class ElmoState(NamedTuple):
    """State of the LSTMs between two calls, as the original implementations carry it.

    Each direction is `(h, c)`: h of shape `(layers, batch, projection_size)`, c of shape
    `(layers, batch, cell_size)`.
    """

    forward: State
    backward: State | None


class StatefulOutput(ModelOutput):
    """An output whose `state` is an attribute, but not a key or a part of the tuple.

    Pipelines and Trainer treat row i of every key's value as the row of sentence i. The first axis
    of a state is the layer, so the state must not be a key.
    """

    state: ElmoState | None

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]  # transformers' own
        if "state" in self:
            OrderedDict.__delitem__(self, "state")


@dataclass
class ElmoModelOutput(StatefulOutput):
    """Output of `ElmoModel`.

    Attributes:
        last_hidden_state: The top layer, shape `(batch, tokens, hidden_size)`.
        elmo: The mix that the configuration sets, shape `(batch, tokens, hidden_size)`.
        hidden_states: On request, the word vectors (twice side by side if bidirectional) and
            each LSTM layer: `num_hidden_layers + 1` tensors `(batch, tokens, hidden_size)`.
        state: The LSTMs' state after the last word of each sentence; an attribute only.
        attention_mask: 1 where a row is a word, shape `(batch, tokens)`; with
            `keep_sentence_boundaries` it is longer by 2 and also 1 at the boundaries.
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
        loss: Mean of the directions' cross entropies, where labels were given.
        forward_logits: Scores of each next word, before the softmax, shape
            `(batch, tokens + 1, vocab_size)`: the row of `<S>`, then one of each word.
        backward_logits: Scores of each previous word, likewise: a row of each word, then that of
            `</S>`; None if unidirectional.
        hidden_states: As in `ElmoModelOutput`.
        state: As in `ElmoModelOutput`.
    """

    loss: Tensor | None = None
    forward_logits: Tensor | None = None
    backward_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    state: ElmoState | None = None

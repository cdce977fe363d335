"""Textual entailment: ESIM (Chen et al. 2017; Peters et al. 2018)."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization
from transformers.modeling_outputs import SequenceClassifierOutput

from hf_elmo.modeling_heads import pool_words

from .classification import ClassificationTask, ElmoTextClassifier
from .configuration import ElmoTaskConfig
from .layers.attention import masked_softmax
from .layers.recurrent import VariationalDropout, run_sentences
from .modeling import Inputs
from .readers import Pair, Use, read_pairs


@strict
class ElmoEntailmentConfig(ElmoTaskConfig):
    """Configuration of a classifier of pairs of sentences.

    Args:
        hidden_size: Width of each direction of both biLSTMs, and of the linear layers.
        dropout: Dropout probability in the classifier and at biLSTM inputs (one mask per sentence).
    """

    model_type = "elmo-entailment"

    hidden_size: int = 150
    dropout: float | int = 0.5


class ElmoForEntailment(ElmoTextClassifier):
    """Label pairs of sentences by attention between their words."""

    config: ElmoEntailmentConfig
    config_class = ElmoEntailmentConfig

    def __init__(self, config: ElmoEntailmentConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.word_dropout = VariationalDropout(config.dropout)
        self.encoder = nn.LSTM(config.input_size, size, batch_first=True, bidirectional=True)
        self.comparison = nn.Linear(4 * (2 * size + config.elmo_output_size), size)
        self.composition = nn.LSTM(size, size, batch_first=True, bidirectional=True)
        self.pooled = nn.Linear(8 * size, size)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(size, len(config.label_names))
        self.post_init()

    def set_initial_values(self) -> None:
        """Draw orthogonal recurrent weights, the others by Xavier; set the forget bias to 1."""
        for linear in (self.comparison, self.pooled, self.classifier):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        for layers in (self.encoder, self.composition):
            for name, weight in layers.named_parameters():
                if name.startswith("weight_ih"):
                    nn.init.xavier_uniform_(weight)
                elif name.startswith("weight_hh"):
                    nn.init.orthogonal_(weight)
                else:  # gates i, f, g, o; one of the two biases opens f
                    is_open = float(name.startswith("bias_hh"))
                    gates = torch.tensor([0.0, is_open, 0.0, 0.0])
                    initialization.copy_(weight, gates.repeat_interleave(len(weight) // 4))

    def compute(
        self, inputs: Inputs, labels: Tensor | None = None, **kwargs: Any
    ) -> SequenceClassifierOutput:
        """Score every label for each pair.

        Args:
            inputs: The words: two sentences per example, the premise and the hypothesis.
            labels: The label of each pair, shape `(batch,)`.
            **kwargs: Ignored.

        Returns:
            `logits (batch, num_labels)`; `loss`, the mean cross entropy plus
            `penalty()`.
        """
        words = self.read_words(inputs.map(lambda x: x.flatten(0, 1)))  # (2 * batch, tokens)
        h = run_sentences(self.encoder, self.word_dropout(words.input), words.mask)
        h = torch.cat([h, words.output], dim=-1)
        other, other_mask = _swap(h), _swap(words.mask)
        attended = masked_softmax(h @ other.mT, other_mask[:, None, :]) @ other
        compared = torch.cat([h, attended, h - attended, h * attended], dim=-1)
        v = self.word_dropout(self.comparison(compared).relu())
        v = run_sentences(self.composition, v, words.mask)
        pooled = torch.cat([pool_words(v, words.mask, name) for name in ("mean", "max")], dim=1)
        pooled = self.dropout(pooled.unflatten(0, (-1, 2)).flatten(1))
        logits = self.classifier(self.dropout(self.pooled(pooled).relu()))
        loss = None if labels is None else F.cross_entropy(logits, labels) + self.penalty()
        return SequenceClassifierOutput(loss=loss, logits=logits)


def _swap(x: Tensor) -> Tensor:
    """Swap the two texts of each pair, along the first axis."""
    return x.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


class EntailmentTask(ClassificationTask[Pair]):
    """Textual entailment."""

    name = "entailment"
    model = ElmoForEntailment
    has_several_sentences = True

    def read(self, path: Path, use: Use = "score", preset: str = "paper") -> list[Pair]:
        """Read pairs of sentences."""
        return read_pairs(path, keeps_all=use == "predict")

    def texts(self, example: Pair) -> list[list[str]]:
        return [example.premise, example.hypothesis]

    def to_json(self, example: Pair, found: str) -> dict[str, Any]:
        return {"premise": example.premise, "hypothesis": example.hypothesis, "label": found}

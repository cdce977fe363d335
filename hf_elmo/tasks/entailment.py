"""Textual entailment: ESIM (Chen et al. 2017; Peters et al. 2018)."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from hf_elmo.tasks.data.readers import read_pairs
from hf_elmo.tasks.data.scores import ACCURACY
from hf_elmo.tasks.layers.attention import compare_dot, masked_softmax
from hf_elmo.tasks.layers.dropout import VariationalDropout
from hf_elmo.tasks.layers.pooling import pool_max, pool_mean
from hf_elmo.tasks.layers.recurrent import run_sentences

from .classification import ElmoTextClassifier, describe_examples, label_examples
from .configuration import ElmoTaskConfig
from .task import Preset, Recipe, Task


@strict
class ElmoEntailmentConfig(ElmoTaskConfig):
    """Describe a classifier of pairs of sentences.

    Args:
        hidden_size: Width of a direction of both biLSTMs, and of the linear layers.
        dropout: Probability for the inputs of biLSTMs, one mask a sentence, and of the classifier.
    """

    model_type = "elmo-entailment"

    hidden_size: int = 150
    dropout: float = 0.5


class ElmoForEntailment(ElmoTextClassifier):
    """Label pairs of sentences by what each word of one finds in the other."""

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
        """Draw linear layers by Xavier, recurrent matrices orthogonal, forget gates open."""
        for linear in (self.comparison, self.pooled, self.classifier):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        for layers in (self.encoder, self.composition):
            for name, weight in layers.named_parameters():
                if name.startswith("weight_ih"):
                    nn.init.xavier_uniform_(weight)
                elif name.startswith("weight_hh"):
                    nn.init.orthogonal_(weight)
                else:  # gates: input, forget, cell, output; of two biases, one opens
                    is_open = float(name.startswith("bias_hh"))
                    gates = torch.tensor([0.0, is_open, 0.0, 0.0])
                    initialization.copy_(weight, gates.repeat_interleave(len(weight) // 4))

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        word_input_ids: Tensor | None = None,
        elmo_layers: Tensor | None = None,
        static_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Score the labels of every pair.

        Args:
            input_ids: As for `ElmoTaskModel.read_words`, as are the next four, but for a second
                axis of two: the premise and the hypothesis.
            attention_mask: 1 at words, shape `(batch, 2, tokens)`.
            word_input_ids: Rows of the biLM's lexicon.
            elmo_layers: The biLM's layers.
            static_ids: Rows of the static vectors.
            labels: The label of each pair, shape `(batch,)`.
            **kwargs: Ignored; transformers passes some along.

        Returns:
            `logits (batch, num_labels)`; `loss`, the mean cross entropy.
        """
        words = self.read_texts(attention_mask, input_ids, word_input_ids, elmo_layers, static_ids)
        h = run_sentences(self.encoder, self.word_dropout(words.input), words.mask)
        h = torch.cat([h, words.output], dim=-1)
        other, other_mask = _swap(h), _swap(words.mask)
        attended = masked_softmax(compare_dot(h, other), other_mask[:, None, :]) @ other
        compared = torch.cat([h, attended, h - attended, h * attended], dim=-1)
        v = self.word_dropout(self.comparison(compared).relu())
        v = run_sentences(self.composition, v, words.mask)
        pooled = torch.cat([pool_mean(v, words.mask), pool_max(v, words.mask)], dim=1)
        pooled = self.dropout(pooled.unflatten(0, (-1, 2)).flatten(1))
        logits = self.classifier(self.dropout(self.pooled(pooled).relu()))
        loss = None if labels is None else F.cross_entropy(logits, labels) + self.penalty()
        return SequenceClassifierOutput(loss=loss, logits=logits)


def _swap(x: Tensor) -> Tensor:
    """Put each text in the place of the other of its pair, along the first axis."""
    return x.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


ENTAILMENT = Task(
    name="entailment",
    model=ElmoForEntailment,
    presets={
        "paper": Preset(
            Recipe(
                batch_size=32,
                num_epochs=75,
                patience=5,
                learning_rate=4e-4,
                max_gradient_norm=10.0,
                schedule="halved",
            ),
            {
                "hidden_size": 300,
                "elmo_at": "both",
                "elmo": {"mix_l2": 0.001, "mix_layer_norm": "sentence"},
            },
        ),
        "cpu": Preset(
            Recipe(
                batch_size=32,
                num_epochs=15,
                patience=15,
                learning_rate=1e-3,
                max_gradient_norm=10.0,
                schedule="linear",
            ),
            {
                "hidden_size": 150,
                "elmo_at": "both",
                "elmo": {"mix_l2": 0.001, "mix_layer_norm": "sentence"},
            },
        ),
    },
    metric="accuracy",
    read=read_pairs,
    read_unlabelled=partial(read_pairs, keeps_all=True),
    texts=lambda example: [example.premise, example.hypothesis],
    describe=describe_examples,
    label=label_examples,
    scores=ACCURACY,
    gold=lambda example: example.label,
    to_json=lambda example, found: {
        "premise": example.premise,
        "hypothesis": example.hypothesis,
        "label": found,
    },
    has_texts=True,
)

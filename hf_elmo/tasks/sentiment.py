"""Sentiment: the biattentive classification network (McCann et al. 2017; Peters et al. 2018)."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from hf_elmo.tasks.data.readers import read_trees
from hf_elmo.tasks.data.scores import ACCURACY
from hf_elmo.tasks.layers.attention import compare_dot, masked_softmax
from hf_elmo.tasks.layers.maxout import Maxout
from hf_elmo.tasks.layers.pooling import pool_max, pool_mean
from hf_elmo.tasks.layers.recurrent import run_sentences

from .classification import ElmoTextClassifier, describe_examples, label_examples
from .configuration import ElmoTaskConfig
from .task import Preset, Recipe, Task

OUTPUT_DROPOUTS = (0.1, 0.2, 0.3)  # before each of the maxout layers


@strict
class ElmoSentimentConfig(ElmoTaskConfig):
    """Describe a classifier of sentences.

    Args:
        hidden_size: Width of the linear layer on the words, and of a direction of both biLSTMs.
        input_dropout: Probability for the words; None = .5 with ELMo, .25 without, as published.
        dropout: Probability after the linear layer on the words.
        num_pieces: Linear layers of which a maxout takes the largest.
    """

    model_type = "elmo-sentiment"

    hidden_size: int = 150
    input_dropout: float | None = None
    dropout: float = 0.25
    num_pieces: int = 4

    def __post_init__(self, **kwargs: Any) -> None:
        if self.input_dropout is None:
            self.input_dropout = 0.5 if self.num_mixes else 0.25
        super().__post_init__(**kwargs)


class ElmoForSentiment(ElmoTextClassifier):
    """Label sentences by attention of a sentence to itself, four poolings and maxout."""

    config: ElmoSentimentConfig
    config_class = ElmoSentimentConfig

    def __init__(self, config: ElmoSentimentConfig) -> None:
        super().__init__(config)
        size, pieces = config.hidden_size, config.num_pieces
        self.input_linear = nn.Linear(config.input_size, size)
        self.encoder = nn.LSTM(size, size, batch_first=True, bidirectional=True)
        self.integrator = nn.LSTM(6 * size, size, batch_first=True, bidirectional=True)
        width = 2 * size + config.elmo_output_size
        self.pooling_linear = nn.Linear(width, 1)
        self.output_layers = nn.ModuleList(
            [
                Maxout(4 * width, 4 * size, pieces),
                Maxout(4 * size, 2 * size, pieces),
                Maxout(2 * size, len(config.label_names), pieces),
            ]
        )
        self.post_init()

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
        """Score the labels of every sentence.

        Args:
            input_ids: As for `ElmoTaskModel.read_words`, as are the next four.
            attention_mask: 1 at words.
            word_input_ids: Rows of the biLM's lexicon.
            elmo_layers: The biLM's layers.
            static_ids: Rows of the static vectors.
            labels: The label of each sentence, shape `(batch,)`.
            **kwargs: Ignored; transformers passes some along.

        Returns:
            `logits (batch, num_labels)`; `loss`, the mean cross entropy.
        """
        config = self.config
        words = self.read_words(attention_mask, input_ids, word_input_ids, elmo_layers, static_ids)
        x = F.dropout(words.input, config.input_dropout or 0.0, self.training)
        x = F.dropout(self.input_linear(x).relu(), config.dropout, self.training)
        h = run_sentences(self.encoder, x, words.mask)
        shares = masked_softmax(compare_dot(h, h), words.mask[:, None, :])
        attended = shares @ h
        h = torch.cat([h, h - attended, h * attended], dim=-1)
        h = torch.cat([run_sentences(self.integrator, h, words.mask), words.output], dim=-1)
        x = self._pool(h, words.mask)
        for layer, probability in zip(self.output_layers, OUTPUT_DROPOUTS, strict=True):
            x = layer(F.dropout(x, probability, self.training))
        loss = None if labels is None else F.cross_entropy(x, labels) + self.penalty()
        return SequenceClassifierOutput(loss=loss, logits=x)

    def _pool(self, h: Tensor, mask: Tensor) -> Tensor:
        """Put maximum, minimum, mean and a learned mean of the words side by side."""
        shares = masked_softmax(self.pooling_linear(h).squeeze(2), mask)
        learned = (shares[:, None, :] @ h).squeeze(1)
        return torch.cat(
            [pool_max(h, mask), -pool_max(-h, mask), pool_mean(h, mask), learned], dim=1
        )


SENTIMENT = Task(
    name="sentiment",
    model=ElmoForSentiment,
    presets={
        "paper": Preset(
            Recipe(batch_size=100, num_epochs=40, patience=5),
            {"hidden_size": 300, "elmo": {"mix_l2": 0.001}},
            partial(read_trees, min_phrase=1),
        ),
        "cpu": Preset(
            Recipe(batch_size=100, num_epochs=4, patience=4, schedule="linear"),
            {"hidden_size": 150, "input_dropout": 0.25, "elmo": {"mix_l2": 0.001}},
            partial(read_trees, min_phrase=4),
        ),
    },
    metric="accuracy",
    read=read_trees,
    read_unlabelled=partial(read_trees, reads_words=True),
    texts=lambda example: [example.words],
    describe=describe_examples,
    label=label_examples,
    scores=ACCURACY,
    gold=lambda example: example.label,
    to_json=lambda example, found: {"words": example.words, "label": found},
)

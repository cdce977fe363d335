"""Sentiment: the biattentive classification network (McCann et al. 2017; Peters et al. 2018)."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from hf_elmo.modeling_heads import pool_words

from .classification import ClassificationTask, ElmoTextClassifier
from .configuration import ElmoTaskConfig
from .layers.attention import masked_softmax
from .layers.recurrent import run_sentences
from .modeling import Inputs
from .readers import LabelledSentence, Use, read_trees

MIN_PHRASES = {"paper": 1, "cpu": 4}  # words of the shortest phrases to train on, by preset
OUTPUT_DROPOUTS = (0.1, 0.2, 0.3)  # before each of the maxout layers


@strict
class ElmoSentimentConfig(ElmoTaskConfig):
    """Configuration of a classifier of sentences.

    Args:
        hidden_size: Width of the linear layer on the words, and of each direction of both biLSTMs.
        input_dropout: Dropout of word vectors; None = .5 with ELMo, else .25, as published.
        dropout: Dropout probability after the linear layer on the words.
        num_pieces: Number of linear layers in each maxout layer.
    """

    model_type = "elmo-sentiment"

    hidden_size: int = 150
    input_dropout: float | int | None = None
    dropout: float | int = 0.25
    num_pieces: int = 4

    def __post_init__(self, **kwargs: Any) -> None:
        if self.input_dropout is None:
            self.input_dropout = 0.5 if self.num_mixes else 0.25
        super().__post_init__(**kwargs)


class Maxout(nn.Module):
    """The elementwise maximum of several linear layers (Goodfellow et al. 2013).

    `y_k = max_j (W_kj x + b_kj)` over the linear layers j.

    Args:
        in_features: Width of the input.
        out_features: Width of the output.
        num_pieces: Number of linear layers.
    """

    def __init__(self, in_features: int, out_features: int, num_pieces: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features * num_pieces)
        self.num_pieces = num_pieces

    def forward(self, x: Tensor) -> Tensor:
        """Map the last axis from `in_features` to `out_features`."""
        return self.linear(x).unflatten(-1, (-1, self.num_pieces)).amax(dim=-1)


class ElmoForSentiment(ElmoTextClassifier):
    """Label sentences by self-attention, four poolings and maxout layers."""

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

    def compute(
        self, inputs: Inputs, labels: Tensor | None = None, **kwargs: Any
    ) -> SequenceClassifierOutput:
        """Score every label for each sentence.

        Args:
            inputs: The words.
            labels: The label of each sentence, shape `(batch,)`.
            **kwargs: Ignored.

        Returns:
            `logits (batch, num_labels)`; `loss`, the mean cross entropy plus
            `penalty()`.
        """
        config = self.config
        words = self.read_words(inputs)
        x = F.dropout(words.input, config.input_dropout or 0.0, self.training)
        x = F.dropout(self.input_linear(x).relu(), config.dropout, self.training)
        h = run_sentences(self.encoder, x, words.mask)
        shares = masked_softmax(h @ h.mT, words.mask[:, None, :])
        attended = shares @ h
        h = torch.cat([h, h - attended, h * attended], dim=-1)
        h = torch.cat([run_sentences(self.integrator, h, words.mask), words.output], dim=-1)
        x = self._pool(h, words.mask)
        for layer, probability in zip(self.output_layers, OUTPUT_DROPOUTS, strict=True):
            x = layer(F.dropout(x, probability, self.training))
        loss = None if labels is None else F.cross_entropy(x, labels) + self.penalty()
        return SequenceClassifierOutput(loss=loss, logits=x)

    def _pool(self, h: Tensor, mask: Tensor) -> Tensor:
        """Concatenate the maximum, minimum, mean and a learned weighted mean of the words."""
        shares = masked_softmax(self.pooling_linear(h).squeeze(2), mask)
        learned = (shares[:, None, :] @ h).squeeze(1)
        return torch.cat(
            [
                pool_words(h, mask, "max"),
                -pool_words(-h, mask, "max"),
                pool_words(h, mask, "mean"),
                learned,
            ],
            dim=1,
        )


class SentimentTask(ClassificationTask[LabelledSentence]):
    """Sentiment of sentences."""

    name = "sentiment"
    model = ElmoForSentiment

    def read(self, path: Path, use: Use = "score", preset: str = "paper") -> list[LabelledSentence]:
        """Read trees or labelled texts; for training, add phrases of the trees."""
        min_phrase = MIN_PHRASES[preset] if use == "train" else None
        return read_trees(path, min_phrase=min_phrase, reads_words=use == "predict")

    def texts(self, example: LabelledSentence) -> list[list[str]]:
        return [example.words]

    def to_json(self, example: LabelledSentence, found: str) -> dict[str, Any]:
        return {"words": example.words, "label": found}

"""Named entities: biLSTM and CRF (Lample et al. 2016; Peters et al. 2017; Peters et al. 2018)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers.modeling_outputs import TokenClassifierOutput

from .configuration import ElmoTaskConfig
from .labels import Span, decode_spans, label_words, list_labels
from .layers.crf import ConditionalRandomField
from .layers.recurrent import run_sentences
from .modeling import ElmoTaskModel, Inputs
from .readers import TaggedSentence, Use, read_columns
from .scores import SPANS
from .task import Task, describe_labels


@strict
class ElmoNerConfig(ElmoTaskConfig):
    """Configuration of a tagger that finds named entities, or any spans that do not overlap.

    The labels of words (`id2label`) follow the BIOUL scheme.

    Args:
        lstm_size: Width of each direction of the biLSTM.
        num_lstm_layers: Number of layers of the biLSTM.
        dropout: Dropout probability at the biLSTM's input and output, and between its layers.
    """

    model_type = "elmo-ner"

    lstm_size: int = 100
    num_lstm_layers: int = 2
    dropout: float | int = 0.5


class ElmoForNer(ElmoTaskModel):
    """Label words by a CRF over a biLSTM."""

    config: ElmoNerConfig
    config_class = ElmoNerConfig

    def __init__(self, config: ElmoNerConfig) -> None:
        super().__init__(config)
        num_labels = len(config.label_names)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.LSTM(
            config.input_size,
            config.lstm_size,
            config.num_lstm_layers,
            batch_first=True,
            bidirectional=True,
            dropout=config.dropout if config.num_lstm_layers > 1 else 0.0,
        )
        width = 2 * config.lstm_size + config.elmo_output_size
        self.classifier = nn.Linear(width, num_labels)
        self.crf = ConditionalRandomField(num_labels)
        self.post_init()

    def compute(
        self, inputs: Inputs, labels: Tensor | None = None, **kwargs: Any
    ) -> TokenClassifierOutput:
        """Score every label for each word.

        Args:
            inputs: The words.
            labels: The label of each word, shape `(batch, tokens)`; not read at padding.
            **kwargs: Ignored.

        Returns:
            `logits (batch, tokens, num_labels)`, without the CRF's transitions, which `predict`
            adds; `loss`, the negative log-likelihood of the labels, summed over the batch, plus
            `penalty()`.
        """
        words = self.read_words(inputs)
        encoded = run_sentences(self.encoder, self.dropout(words.input), words.mask)
        logits = self.classifier(torch.cat([self.dropout(encoded), words.output], dim=-1))
        loss = None
        if labels is not None:
            loss = -self.crf(logits, labels, words.mask).sum() + self.penalty()
        return TokenClassifierOutput(loss=loss, logits=logits)

    def predict(self, **inputs: Tensor) -> list[list[Span]]:
        """Find the best spans of each sentence; inputs as for `forward`, without labels."""
        names, transitions = self.config.label_names, self.crf.transitions
        return decode_spans(self(**inputs).logits, inputs["attention_mask"], names, transitions)


class NerTask(Task[TaggedSentence, list[Span]]):
    """Named entity recognition."""

    name = "ner"
    model = ElmoForNer
    metric = "f1"
    scores = SPANS

    def read(self, path: Path, use: Use = "score", preset: str = "paper") -> list[TaggedSentence]:
        """Read CoNLL columns."""
        return read_columns(path, reads_tags=use != "predict")

    def texts(self, example: TaggedSentence) -> list[list[str]]:
        return [example.words]

    def describe(self, examples: Sequence[TaggedSentence]) -> dict[str, Any]:
        names = {span.label for example in examples for span in example.spans}
        return describe_labels(list_labels(names, "BIOUL"))

    def label(
        self, examples: Sequence[TaggedSentence], config: ElmoTaskConfig
    ) -> dict[str, Tensor]:
        """Make a tensor of the words' labels, shape `(batch, tokens)`; 0 at padding."""
        numbers = config.label_rows
        rows = [
            torch.tensor([numbers[label] for label in label_words(spans, len(words), "BIOUL")])
            for words, spans, _ in examples
        ]
        return {"labels": pad_sequence(rows, batch_first=True)}

    def gold(self, example: TaggedSentence) -> list[Span]:
        return example.spans

    def to_json(self, example: TaggedSentence, found: list[Span]) -> dict[str, Any]:
        entities = [[span.label, span.start, span.end] for span in found]
        return {"words": example.words, "entities": entities}

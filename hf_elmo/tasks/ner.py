"""Named entities: biLSTM and CRF (Lample et al. 2016; Peters et al. 2017; Peters et al. 2018)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from hf_elmo.tasks.data.labels import Span, constrain_labels, find_spans, label_words, list_labels
from hf_elmo.tasks.data.readers import TaggedSentence, read_columns
from hf_elmo.tasks.data.scores import SPANS
from hf_elmo.tasks.layers.crf import ConditionalRandomField, find_best_paths
from hf_elmo.tasks.layers.recurrent import run_sentences

from .configuration import ElmoTaskConfig
from .modeling import ElmoTaskModel
from .task import Preset, Recipe, Task, describe_labels


@strict
class ElmoNerConfig(ElmoTaskConfig):
    """Describe a tagger of named entities, or of any spans that do not overlap.

    The labels of words (`id2label`) are BIOUL.

    Args:
        lstm_size: Width of a direction of the biLSTM.
        num_lstm_layers: Layers of the biLSTM.
        dropout: Probability for the biLSTM's input, between its layers, and for its output.
    """

    model_type = "elmo-ner"

    lstm_size: int = 100
    num_lstm_layers: int = 2
    dropout: float = 0.5


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
    ) -> TokenClassifierOutput:
        """Score the labels of every word.

        Args:
            input_ids: As for `ElmoTaskModel.read_words`, as are the next four.
            attention_mask: 1 at words.
            word_input_ids: Rows of the biLM's lexicon.
            elmo_layers: The biLM's layers.
            static_ids: Rows of the static vectors.
            labels: The label of each word, shape `(batch, tokens)`; not read at padding.
            **kwargs: Ignored; transformers passes some along.

        Returns:
            `logits (batch, tokens, num_labels)`, before the CRF's transitions, which `predict`
            adds; `loss`, the negative log-likelihood of the labels, summed over the batch.
        """
        words = self.read_words(attention_mask, input_ids, word_input_ids, elmo_layers, static_ids)
        encoded = run_sentences(self.encoder, self.dropout(words.input), words.mask)
        logits = self.classifier(torch.cat([self.dropout(encoded), words.output], dim=-1))
        loss = None
        if labels is not None:
            loss = -self.crf(logits, labels, words.mask).sum() + self.penalty()
        return TokenClassifierOutput(loss=loss, logits=logits)

    def predict(self, **inputs: Tensor) -> list[list[Span]]:
        """Find the best spans of each sentence.

        Args:
            **inputs: As for `forward`, without labels.

        Returns:
            The spans of each sentence.
        """
        logits = self(**inputs).logits
        paths = find_best_paths(
            logits.cpu(),
            inputs["attention_mask"].bool().cpu(),
            transitions=self.crf.transitions.detach().cpu(),
            constraints=constrain_labels(self.config.label_names),
        )
        names = self.config.label_names
        return [find_spans([names[row] for row in path]) for path in paths]


def _describe(examples: Sequence[TaggedSentence]) -> dict[str, Any]:
    names = {span.label for example in examples for span in example.spans}
    return describe_labels(list_labels(names, "BIOUL"))


def _label(examples: Sequence[TaggedSentence], config: ElmoNerConfig) -> dict[str, Tensor]:
    numbers = config.label_rows
    rows = [
        [numbers[label] for label in label_words(spans, len(words), "BIOUL")]
        for words, spans in examples
    ]
    width = max(map(len, rows))
    return {"labels": torch.tensor([row + [0] * (width - len(row)) for row in rows])}


NER = Task(
    name="ner",
    model=ElmoForNer,
    presets={
        "paper": Preset(
            Recipe(batch_size=64, num_epochs=75, patience=25),
            {
                "lstm_size": 200,
                "char_size": 16,
                "num_char_filters": 128,
                "trains_static": True,
                "elmo": {"mix_l2": 0.1},
            },
        ),
        "cpu": Preset(
            Recipe(batch_size=32, num_epochs=50, patience=50, schedule="linear"),
            {
                "lstm_size": 100,
                "char_size": 16,
                "num_char_filters": 64,
                "trains_static": True,
                "elmo": {"mix_l2": 0.1},
            },
        ),
    },
    metric="f1",
    read=read_columns,
    read_unlabelled=partial(read_columns, reads_tags=False),
    texts=lambda example: [example.words],
    describe=_describe,
    label=_label,
    scores=SPANS,
    gold=lambda example: example.spans,
    to_json=lambda example, found: {
        "words": example.words,
        "entities": [[span.label, span.start, span.end] for span in found],
    },
)

"""Semantic roles: interleaved highway biLSTM (He et al. 2017; Peters et al. 2018)."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from hf_elmo.tasks.data.labels import Span, constrain_labels, find_spans, label_words, list_labels
from hf_elmo.tasks.data.readers import PREDICATE, Frame, read_frames
from hf_elmo.tasks.data.scores import SPANS
from hf_elmo.tasks.layers.crf import find_best_paths
from hf_elmo.tasks.layers.highway_lstm import AlternatingHighwayLstm

from .configuration import ElmoTaskConfig
from .modeling import ElmoTaskModel
from .task import Preset, Recipe, Task, describe_labels


@strict
class ElmoSrlConfig(ElmoTaskConfig):
    """Describe a labeller of a predicate's roles.

    The labels of words (`id2label`) are BIO; the predicate itself is `B-V`.

    Args:
        hidden_size: Width of each layer.
        num_layers: Layers; every second runs from the end.
        predicate_size: Width of the vector that marks the predicate.
        dropout: Probability for the states that recur, one mask a sentence.
    """

    model_type = "elmo-srl"

    hidden_size: int = 150
    num_layers: int = 4
    predicate_size: int = 50
    dropout: float = 0.1


class ElmoForSrl(ElmoTaskModel):
    """Label the words of a sentence by their roles for one predicate."""

    config: ElmoSrlConfig
    config_class = ElmoSrlConfig

    def __init__(self, config: ElmoSrlConfig) -> None:
        super().__init__(config)
        self.marks = nn.Embedding(2, config.predicate_size)
        self.encoder = AlternatingHighwayLstm(
            config.input_size + config.predicate_size,
            config.hidden_size,
            config.num_layers,
            dropout=config.dropout,
        )
        width = config.hidden_size + config.elmo_output_size
        self.classifier = nn.Linear(width, len(config.label_names))
        self.post_init()

    def set_initial_values(self) -> None:
        """Draw the projection to labels orthogonal."""
        nn.init.orthogonal_(self.classifier.weight)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        word_input_ids: Tensor | None = None,
        elmo_layers: Tensor | None = None,
        static_ids: Tensor | None = None,
        predicates: Tensor | None = None,
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
            predicates: Number of the predicate's word, shape `(batch,)`.
            labels: The label of each word, shape `(batch, tokens)`; not read at padding.
            **kwargs: Ignored; transformers passes some along.

        Returns:
            `logits (batch, tokens, num_labels)`; `loss`, the mean over sentences of the mean cross
            entropy of their words.

        Raises:
            ValueError: If no predicates are given, or as `read_words`.
        """
        if predicates is None:
            raise ValueError("Expected predicates, the number of a word for each sentence.")
        words = self.read_words(attention_mask, input_ids, word_input_ids, elmo_layers, static_ids)
        places = torch.arange(words.mask.shape[1], device=words.mask.device)
        is_predicate = places == predicates[:, None]
        x = torch.cat([words.input, self.marks(is_predicate.long())], dim=-1)
        x = torch.cat([self.encoder(x, words.mask), words.output], dim=-1)
        logits = self.classifier(x)
        loss = None
        if labels is not None:
            losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
            sums = losses.masked_fill(~words.mask, 0.0).sum(dim=1)
            loss = (sums / words.mask.sum(dim=1).clamp(min=1)).mean() + self.penalty()
        return TokenClassifierOutput(loss=loss, logits=logits)

    def predict(self, **inputs: Tensor) -> list[list[Span]]:
        """Find the best roles of each predicate.

        Args:
            **inputs: As for `forward`, without labels.

        Returns:
            The spans of each predicate's arguments, itself not among them.
        """
        scores = self(**inputs).logits.log_softmax(dim=2).cpu()
        size = scores.shape[2]
        paths = find_best_paths(
            scores,
            inputs["attention_mask"].bool().cpu(),
            transitions=scores.new_zeros(size, size),
            constraints=constrain_labels(self.config.label_names),
        )
        names = self.config.label_names
        spans = [find_spans([names[row] for row in path]) for path in paths]
        return [[span for span in found if span.label != PREDICATE] for found in spans]


def _describe(examples: Sequence[Frame]) -> dict[str, Any]:
    names = {span.label for example in examples for span in example.roles} | {PREDICATE}
    return describe_labels(list_labels(names, "BIO"))


def _label(examples: Sequence[Frame], config: ElmoSrlConfig) -> dict[str, Tensor]:
    numbers = config.label_rows
    width = max(len(example.words) for example in examples)
    labels = torch.zeros(len(examples), width, dtype=torch.long)
    for row, (words, predicate, roles) in enumerate(examples):
        names = label_words(roles, len(words), "BIO")
        if names[predicate] == "O":  # a few arguments hold their predicate
            names[predicate] = f"B-{PREDICATE}"
        labels[row, : len(words)] = torch.tensor([numbers[name] for name in names])
    return {"labels": labels}


SRL = Task(
    name="srl",
    model=ElmoForSrl,
    presets={
        "paper": Preset(
            Recipe(
                batch_size=80,
                num_epochs=500,
                patience=200,
                optimizer="adadelta",
                learning_rate=1.0,
                max_gradient_norm=None,
                max_gradient=1.0,
            ),
            {
                "hidden_size": 300,
                "num_layers": 8,
                "predicate_size": 100,
                "trains_static": True,
                "elmo_dropout": 0.1,
                "elmo": {"mix_l2": 0.001},
            },
        ),
        "cpu": Preset(
            Recipe(batch_size=64, num_epochs=5, patience=5, schedule="linear"),
            {
                "hidden_size": 150,
                "num_layers": 4,
                "predicate_size": 50,
                "trains_static": True,
                "elmo_dropout": 0.1,
                "elmo": {"mix_l2": 0.001},
            },
        ),
    },
    metric="f1",
    read=read_frames,
    texts=lambda example: [example.words],
    describe=_describe,
    label=_label,
    scores=SPANS,
    gold=lambda example: example.roles,
    to_json=lambda example, found: {
        "words": example.words,
        "predicate": example.predicate,
        "roles": [[span.label, span.start, span.end] for span in found],
    },
    mark=lambda examples: {"predicates": torch.tensor([e.predicate for e in examples])},
)

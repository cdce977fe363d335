"""Semantic roles: interleaved highway biLSTM (He et al. 2017; Peters et al. 2018)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers.modeling_outputs import TokenClassifierOutput

from .configuration import ElmoTaskConfig
from .labels import PREDICATE, Span, decode_spans, label_words, list_labels
from .layers.highway_lstm import AlternatingHighwayLstm
from .modeling import ElmoTaskModel, Inputs
from .readers import Frame, Use, read_frames
from .scores import SPANS
from .task import Task, describe_labels

CONTINUATION = "C-"  # of the label of another part of an argument
# Label, and the first and last word of each part.
Argument: TypeAlias = tuple[str, tuple[tuple[int, int], ...]]


@strict
class ElmoSrlConfig(ElmoTaskConfig):
    """Configuration of a model that labels the roles of a predicate.

    The labels of words (`id2label`) follow the BIO scheme; the predicate itself is `B-V`.

    Args:
        hidden_size: Width of each layer.
        num_layers: Number of layers; every second layer runs backward.
        predicate_size: Width of the vector that marks the predicate.
        dropout: Dropout probability for the recurrent states, with one mask per sentence.
    """

    model_type = "elmo-srl"

    hidden_size: int = 150
    num_layers: int = 4
    predicate_size: int = 50
    dropout: float | int = 0.1


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
        """Draw orthogonal weights for the layer that scores labels."""
        nn.init.orthogonal_(self.classifier.weight)

    def compute(
        self,
        inputs: Inputs,
        labels: Tensor | None = None,
        predicates: Tensor | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Score every label for each word.

        Args:
            inputs: The words.
            labels: The label of each word, shape `(batch, tokens)`; not read at padding.
            predicates: Positions of the predicates, shape `(batch,)`.
            **kwargs: Ignored.

        Returns:
            `logits (batch, tokens, num_labels)`; `loss`, the mean cross entropy over the words of
            a sentence, averaged over sentences, plus `penalty()`.

        Raises:
            ValueError: If no predicates are given, or one is outside of its sentence.
        """
        if predicates is None:
            raise ValueError("Expected predicates, the number of a word for each sentence.")
        words = self.read_words(inputs)
        if not ((predicates >= 0) & (predicates < words.mask.sum(dim=1))).all():
            raise ValueError(f"Expected predicates inside their sentences, got {predicates}.")
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
        """Find the best roles of each predicate; inputs as for `forward`, without labels.

        Returns:
            The spans of each predicate's arguments, without the predicate itself.
        """
        scores = self(**inputs).logits.log_softmax(dim=2)
        spans = decode_spans(scores, inputs["attention_mask"], self.config.label_names)
        return [[span for span in found if span.label != PREDICATE] for found in spans]


def join_arguments(roles: Sequence[Span]) -> list[Argument]:
    """Join the parts of arguments, as CoNLL-2005's `srl-eval.pl` does to score them.

    A span `C-X` continues the last `X` before it; without one, it is an `X`. `C-V` belongs to the
    predicate, which is not scored.
    """
    joined: list[Argument] = []
    for label, start, end in sorted(roles, key=lambda span: span.start):
        name = label.removeprefix(CONTINUATION)
        earlier = [row for row, (other, _) in enumerate(joined) if other == name]
        if name == PREDICATE:
            continue
        if name != label and earlier:
            joined[earlier[-1]] = name, (*joined[earlier[-1]][1], (start, end))
        else:
            joined.append((name, ((start, end),)))
    return joined


class SrlTask(Task[Frame, list[Span]]):
    """Semantic role labelling."""

    name = "srl"
    model = ElmoForSrl
    metric = "f1"
    scores = SPANS

    def read(self, path: Path, use: Use = "score", preset: str = "paper") -> list[Frame]:
        """Read PropBank frames."""
        return read_frames(path)

    def texts(self, example: Frame) -> list[list[str]]:
        return [example.words]

    def mark(self, examples: Sequence[Frame]) -> dict[str, Tensor]:
        """Make a tensor of the predicates' positions, shape `(batch,)`."""
        return {"predicates": torch.tensor([example.predicate for example in examples])}

    def describe(self, examples: Sequence[Frame]) -> dict[str, Any]:
        names = {span.label for example in examples for span in example.roles} | {PREDICATE}
        return describe_labels(list_labels(names, "BIO"))

    def label(self, examples: Sequence[Frame], config: ElmoTaskConfig) -> dict[str, Tensor]:
        """Make a tensor of the words' labels, shape `(batch, tokens)`; 0 at padding."""
        numbers = config.label_rows
        rows = []
        for words, predicate, roles, _ in examples:
            names = label_words(roles, len(words), "BIO")
            if names[predicate] == "O":  # a few arguments contain their predicate
                names[predicate] = f"B-{PREDICATE}"
            rows.append(torch.tensor([numbers[name] for name in names]))
        return {"labels": pad_sequence(rows, batch_first=True)}

    def gold(self, example: Frame) -> list[Argument]:
        return join_arguments(example.roles)

    def to_gold_form(self, example: Frame, found: list[Span]) -> list[Argument]:
        """Join the parts of arguments."""
        return join_arguments(found)

    def to_json(self, example: Frame, found: list[Span]) -> dict[str, Any]:
        roles = [[span.label, span.start, span.end] for span in found]
        return {"words": example.words, "predicate": example.predicate, "roles": roles}

"""Text classification: base classes of its models and tasks."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from .configuration import ElmoTaskConfig
from .modeling import ElmoTaskModel
from .readers import LabelledSentence, Pair
from .scores import ACCURACY
from .task import Task, describe_labels

LabelledExample = TypeVar("LabelledExample", LabelledSentence, Pair)


class ElmoTextClassifier(ElmoTaskModel):
    """A model whose `logits` score the labels for each example."""

    config: ElmoTaskConfig

    def rank(self, **inputs: Tensor) -> list[dict[str, float]]:
        """Compute the probability of every label.

        Args:
            **inputs: As for `forward`, without labels.

        Returns:
            For each example, the labels with their probabilities.
        """
        probabilities = self(**inputs).logits.softmax(dim=1).tolist()
        return [dict(zip(self.config.label_names, row, strict=True)) for row in probabilities]

    def predict(self, **inputs: Tensor) -> list[str]:
        """Find the best label of each example; inputs as for `forward`, without labels."""
        return [max(labels, key=labels.__getitem__) for labels in self.rank(**inputs)]


class ClassificationTask(Task[LabelledExample, str]):
    """A task whose examples have one label each."""

    metric = "accuracy"
    scores = ACCURACY

    def describe(self, examples: Sequence[LabelledExample]) -> dict[str, Any]:
        return describe_labels(sorted({example.label for example in examples}))

    def label(
        self, examples: Sequence[LabelledExample], config: ElmoTaskConfig
    ) -> dict[str, Tensor]:
        """Make a tensor of a batch's labels, shape `(batch,)`."""
        rows = config.label_rows
        return {"labels": torch.tensor([rows[example.label] for example in examples])}

    def gold(self, example: LabelledExample) -> str:
        return example.label

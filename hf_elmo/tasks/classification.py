"""What classifiers of texts share: labels by their probabilities."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .configuration import ElmoTaskConfig
from .modeling import ElmoTaskModel
from .task import describe_labels


class ElmoTextClassifier(ElmoTaskModel):
    """A model of which `forward` scores the labels of each example."""

    config: ElmoTaskConfig

    def rank(self, **inputs: Tensor) -> list[dict[str, float]]:
        """Compute the probability of every label.

        Args:
            **inputs: As for `forward`, without labels.

        Returns:
            Of each example the labels with their probabilities.
        """
        probabilities = self(**inputs).logits.softmax(dim=1).tolist()
        return [dict(zip(self.config.label_names, row, strict=True)) for row in probabilities]

    def predict(self, **inputs: Tensor) -> list[str]:
        """Find the best label of each example; inputs as of `forward`, without labels."""
        return [max(labels, key=labels.__getitem__) for labels in self.rank(**inputs)]


def describe_examples(examples: Sequence[Any]) -> dict[str, Any]:
    """Number the labels of examples, as a configuration holds them."""
    return describe_labels(sorted({example.label for example in examples}))


def label_examples(examples: Sequence[Any], config: ElmoTaskConfig) -> dict[str, Tensor]:
    """Make the labels of a batch, shape `(batch,)`."""
    rows = config.label_rows
    return {"labels": torch.tensor([rows[example.label] for example in examples])}

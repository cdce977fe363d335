"""What a task is: its model, its data, its score, its published sizes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm import tqdm

from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.tasks.data.scores import Metric

from .configuration import ElmoTaskConfig
from .modeling import ElmoTaskModel
from .words import WordInputs


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        batch_size: Examples of a step.
        num_epochs: Passes over the training data at most.
        patience: Epochs without a better score after which training ends.
        optimizer: Adam, or Adadelta with rho .95.
        learning_rate: At the start.
        max_gradient_norm: Bound of the norm of all gradients; None = none.
        max_gradient: Bound of each number of a gradient; None = none.
        average: Decay of a moving average of the weights, which is then the model that is scored
            and kept; None = no average.
        schedule: What the learning rate does: it stays as it is; it falls to 0 in a line over all
            epochs; or it is halved when the score is no better.
        halving_patience: Epochs without a better score before the one that halves it.
    """

    batch_size: int
    num_epochs: int
    patience: int
    optimizer: Literal["adam", "adadelta"] = "adam"
    learning_rate: float = 1e-3
    max_gradient_norm: float | None = 5.0
    max_gradient: float | None = None
    average: float | None = None
    schedule: Literal["constant", "linear", "halved"] = "constant"
    halving_patience: int = 0


@dataclass(frozen=True)
class Preset:
    """Sizes of a model and how it is trained.

    Attributes:
        recipe: How it is trained.
        fields: What its configuration sets.
        read: Reads training examples; None = as others are read.
    """

    recipe: Recipe
    fields: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[Path], list[Any]] | None = None


@dataclass(frozen=True)
class Task:
    """A task: all that training, prediction and tests ask of it.

    Attributes:
        name: On the command line.
        model: The class of its model, whose `predict` finds what the task is about.
        presets: `paper`, the published sizes, and `cpu`, about half of them.
        metric: The score that tells the best model, larger = better.
        read: Reads examples from a file.
        read_unlabelled: Reads examples of which the right result may be missing; None = as `read`.
        texts: Lists the sentences of an example.
        has_texts: Whether an example has several sentences, and tensors an axis for them after
            that of the batch.
        is_alone: Whether a batch is one example.
        describe: Finds what the configuration takes from training examples, such as labels.
        label: Makes the labels of a batch, by the configuration.
        scores: Compares predictions with what is right.
        gold: Reads what is right in an example.
        to_json: Writes a prediction down beside its example.
        mark: Makes what a batch's inputs hold beside words.
        to_gold_form: Puts a prediction into the form in which `gold` says what is right.
    """

    name: str
    model: type[ElmoTaskModel]
    presets: Mapping[str, Preset]
    metric: str
    read: Callable[[Path], list[Any]]
    texts: Callable[[Any], list[list[str]]]
    describe: Callable[[Sequence[Any]], dict[str, Any]]
    label: Callable[[Sequence[Any], Any], dict[str, Tensor]]
    scores: Metric
    gold: Callable[[Any], Any]
    to_json: Callable[[Any, Any], dict[str, Any]]
    mark: Callable[[Sequence[Any]], dict[str, Tensor]] = lambda examples: {}
    to_gold_form: Callable[[Any, Any], Any] = lambda example, found: found
    read_unlabelled: Callable[[Path], list[Any]] | None = None
    has_texts: bool = False
    is_alone: bool = False

    def make_config(
        self, preset: str, examples: Sequence[Any], bilm: ElmoConfig, **fields: Any
    ) -> ElmoTaskConfig:
        """Make a configuration.

        Args:
            preset: `paper` or `cpu`.
            examples: Training data, of which labels are taken.
            bilm: Of the biLM; the preset sets how its layers are mixed.
            **fields: What the caller sets, against the preset; `elmo` what it sets of the biLM.

        Returns:
            The configuration of the task's model.
        """
        chosen = self.presets[preset].fields
        elmo = bilm.to_dict() | chosen.get("elmo", {}) | fields.get("elmo", {})
        config: ElmoTaskConfig = self.model.config_class(
            **{**chosen, **self.describe(examples), **fields, "elmo": elmo}
        )
        return config

    def check(self, examples: Sequence[Any], path: Path, config: ElmoTaskConfig) -> None:
        """Refuse labelled examples by which a model cannot be trained or scored.

        Raises:
            ValueError: If there is nothing to find in any, or a text's label is not the model's.
        """
        golds = [self.gold(example) for example in examples]
        if not any(golds):
            raise ValueError(
                f"{path}: expected something to find, such as a span, found none in "
                f"{len(golds)} examples. Is the file in the format of {self.name}?"
            )
        unknown = sorted({x for x in golds if isinstance(x, str)} - {*config.label_names})
        if unknown:
            raise ValueError(
                f"{path}: expected the labels {', '.join(config.label_names)}, found "
                f"{', '.join(map(repr, unknown[:5]))}."
            )

    def count(self, example: Any, found: Any) -> Sequence[float]:
        """Compare a prediction with its example, in numbers that add up over examples."""
        return self.scores.count(self.gold(example), self.to_gold_form(example, found))

    def score(self, examples: Sequence[Any], found: Sequence[Any]) -> dict[str, float]:
        """Score predictions of some examples."""
        told = [self.to_gold_form(*pair) for pair in zip(examples, found, strict=True)]
        return self.scores.score([self.gold(example) for example in examples], told)

    def count_words(self, example: Any) -> int:
        """Count the words of an example."""
        return sum(map(len, self.texts(example)))

    def make_batch(self, examples: Sequence[Any], inputs: WordInputs) -> dict[str, Tensor]:
        """Make the tensors that a model reads of a batch, without labels."""
        sentences = [words for example in examples for words in self.texts(example)]
        batch = inputs(sentences)
        if self.has_texts:
            batch = {name: x.unflatten(0, (len(examples), -1)) for name, x in batch.items()}
        return batch | self.mark(examples)


def describe_labels(labels: Iterable[str]) -> dict[str, Any]:
    """Number labels in their order, as a configuration holds them."""
    names = list(dict.fromkeys(labels))
    return {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}


def batch_by_length(
    examples: Sequence[Any], lengths: Sequence[int], batch_size: int
) -> Iterator[list[int]]:
    """Put examples of like length together; yields the numbers of each batch."""
    order = sorted(range(len(examples)), key=lambda row: lengths[row])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


@torch.no_grad()
def predict(
    task: Task,
    model: ElmoTaskModel,
    inputs: WordInputs,
    examples: Sequence[Any],
    *,
    batch_size: int = 32,
    find: Callable[..., list[Any]] | None = None,
    progress: bool = False,
) -> list[Any]:
    """Predict each example, on the model's device, in evaluation mode.

    Args:
        task: The task.
        model: Its model.
        inputs: Makes the model's inputs.
        examples: What to predict; their gold labels are not read.
        batch_size: Examples that run at once.
        find: A method of the model, such as `rank` of a classifier; None = its `predict`.
        progress: Whether a progress bar is shown.

    Returns:
        Predictions, in the order of the examples.
    """
    was_training = model.training
    model.train(False)
    find = find or model.predict
    predictions: list[Any] = [None] * len(examples)
    lengths = [task.count_words(example) for example in examples]
    bar = tqdm(total=len(examples), unit="examples", disable=not progress)
    for rows in batch_by_length(examples, lengths, 1 if task.is_alone else batch_size):
        batch = task.make_batch([examples[row] for row in rows], inputs)
        batch = {name: x.to(model.device) for name, x in batch.items()}
        for row, prediction in zip(rows, find(**batch), strict=True):
            predictions[row] = prediction
        bar.update(len(rows))
    bar.close()
    model.train(was_training)
    return predictions

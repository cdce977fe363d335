"""A task: its model, its data, its score, its published sizes."""

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from hf_elmo.configuration_elmo import ElmoConfig

from .configuration import ElmoTaskConfig
from .modeling import ElmoTaskModel
from .readers import Use
from .scores import Metric
from .task_inputs import WordInputs

PRESETS_FILE = "presets.toml"
Example = TypeVar("Example")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run.

    Attributes:
        batch_size: Examples per training step.
        num_epochs: Largest number of passes over the training data.
        patience: Stop after this number of epochs without a better score.
        optimizer: Adam, or Adadelta with rho .95.
        learning_rate: Initial learning rate.
        max_gradient_norm: Maximum norm of all gradients together; 0 = no maximum.
        max_gradient: Maximum absolute value of each gradient element; None = no maximum.
        average: Decay of a moving average of the weights; the averaged model is scored and kept;
            None = no average.
        schedule: The learning rate stays constant, falls linearly to 0 over all epochs, or is
            halved when the score does not improve.
        halving_patience: The rate is halved after `halving_patience + 1` epochs without a better
            score.
    """

    batch_size: int
    num_epochs: int
    patience: int
    optimizer: Literal["adam", "adadelta"] = "adam"
    learning_rate: float = 1e-3
    max_gradient_norm: float = 5.0
    max_gradient: float | None = None
    average: float | None = None
    schedule: Literal["constant", "linear", "halved"] = "constant"
    halving_patience: int = 0


class Preset(NamedTuple):
    """Training settings, and fields of the model's configuration."""

    recipe: Recipe
    fields: Mapping[str, Any]


class Task(ABC, Generic[Example, Found]):
    """Base class of all tasks: reads data, makes tensors, and scores predictions.

    Attributes:
        name: Name on the command line.
        model: Class of the model. Its `predict` returns a `Found` for each example.
        metric: Name of the score that chooses the best model; larger = better.
        scores: Metric that compares predictions with gold results.
        has_several_sentences: Whether an example has several sentences; if so, tensors have a
            sentence axis after the batch axis.
        needs_batch_size_one: Whether a batch must be one example.
    """

    name: str
    model: type[ElmoTaskModel]
    metric: str
    scores: Metric
    has_several_sentences = False
    needs_batch_size_one = False

    # Methods of each task

    @abstractmethod
    def read(self, path: Path, use: Use = "score", preset: str = "paper") -> list[Example]:
        """Read examples from a file.

        Args:
            path: File in a format of the task.
            use: Purpose of the examples; with `predict`, gold results may be missing.
            preset: Determines the additional examples for the use `train`, if any.
        """

    @abstractmethod
    def texts(self, example: Example) -> list[list[str]]:
        """List the sentences of an example."""

    def mark(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Make the additional inputs of a batch, such as the positions of predicates."""
        return {}

    def describe(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Find the configuration fields that the training data determines, such as labels."""
        return {}

    @abstractmethod
    def label(self, examples: Sequence[Example], config: ElmoTaskConfig) -> dict[str, Tensor]:
        """Make the labels of a batch."""

    @abstractmethod
    def gold(self, example: Example) -> Any:
        """Return the gold result of an example, in the form that `scores` compares."""

    def to_gold_form(self, example: Example, found: Found) -> Any:
        """Convert a prediction to the form of `gold`."""
        return found

    @abstractmethod
    def to_json(self, example: Example, found: Found) -> dict[str, Any]:
        """Convert an example and its prediction to a dictionary for JSON."""

    # The same for all tasks

    @cached_property
    def presets(self) -> dict[str, Preset]:
        """The presets: `paper` has the published sizes, `cpu` about half of them."""
        text = (files(__package__) / PRESETS_FILE).read_text(encoding="utf-8")
        return {
            name: Preset(Recipe(**fields.pop("recipe")), fields)
            for name, fields in tomllib.loads(text)[self.name].items()
        }

    def make_config(
        self, preset: str, examples: Sequence[Example], bilm: ElmoConfig, **fields: Any
    ) -> ElmoTaskConfig:
        """Make a configuration.

        Args:
            preset: `paper` or `cpu`.
            examples: Training data; determines the labels.
            bilm: Configuration of the biLM; the preset can override its mix. If it does not read
                characters, the model has no character encoder.
            **fields: Fields that override the preset; `elmo` holds fields of the biLM.
        """
        chosen = dict(self.presets[preset].fields)
        elmo = bilm.to_dict() | chosen.get("elmo", {}) | fields.get("elmo", {})
        without = {} if bilm.char_embedding_size else {"char_size": 0, "num_char_filters": 0}
        max_chars = chosen.get("max_chars", ElmoTaskConfig.max_chars)
        # Most scripts need two or three bytes per letter.
        scaled = round(max_chars * self._count_bytes_per_letter(examples))
        chosen |= {"max_chars": max(max_chars, min(scaled, bilm.max_characters_per_token))}
        config: ElmoTaskConfig = self.model.config_class(
            **{**chosen, **without, **self.describe(examples), **fields, "elmo": elmo}
        )
        return config

    def _count_bytes_per_letter(self, examples: Sequence[Example]) -> float:
        words = [word for e in examples for sentence in self.texts(e) for word in sentence]
        num_letters = sum(map(len, words))
        num_bytes = sum(len(word.encode(errors="replace")) for word in words)
        return num_bytes / num_letters if num_letters else 1.0

    def check(self, examples: Sequence[Example], path: Path, config: ElmoTaskConfig) -> None:
        """Refuse labelled examples that cannot train or score a model.

        Raises:
            ValueError: If all gold results are empty, or a text has a label that the model lacks.
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

    def count(self, example: Example, found: Found) -> Sequence[float]:
        """Compare a prediction with its example; return counts, which add up over examples."""
        return self.scores.count(self.gold(example), self.to_gold_form(example, found))

    def score(self, examples: Sequence[Example], found: Sequence[Found]) -> dict[str, float]:
        """Score the predictions for some examples."""
        converted = [self.to_gold_form(*pair) for pair in zip(examples, found, strict=True)]
        return self.scores.score([self.gold(example) for example in examples], converted)

    def count_words(self, example: Example) -> int:
        """Count the words of an example."""
        return sum(map(len, self.texts(example)))

    def make_batch(self, examples: Sequence[Example], inputs: WordInputs) -> dict[str, Tensor]:
        """Make a batch's tensors for the model, without labels."""
        sentences = [words for example in examples for words in self.texts(example)]
        batch = inputs(sentences)
        if self.has_several_sentences:
            batch = {name: x.unflatten(0, (len(examples), -1)) for name, x in batch.items()}
        return batch | self.mark(examples)


def describe_labels(labels: Iterable[str]) -> dict[str, Any]:
    """Number the labels in order; return a configuration's `id2label` and `label2id`."""
    names = list(dict.fromkeys(labels))
    return {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}


def batch_examples(
    examples: Sequence[Any], lengths: Sequence[int], batch_size: int
) -> Iterator[list[int]]:
    """Group examples of similar length; yield the indices of each batch."""
    order = sorted(range(len(examples)), key=lambda row: lengths[row])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


@torch.no_grad()
def predict(
    task: Task[Any, Any],
    model: ElmoTaskModel,
    inputs: WordInputs,
    examples: Sequence[Any],
    *,
    batch_size: int = 32,
    find: Callable[..., list[Any]] | None = None,
    bar: "tqdm[Any] | None" = None,
) -> list[Any]:
    """Predict examples on the model's device, in evaluation mode; keep their order.

    Args:
        task: The task.
        model: The task's model.
        inputs: Makes the model's inputs.
        examples: Examples to predict; their gold labels are not read.
        batch_size: Examples that run at once.
        find: Method of the model to call, such as a classifier's `rank`; None = `predict`.
        bar: Progress bar that counts the examples; None = no bar.

    Raises:
        ValueError: If the batch size is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"Expected a batch size of at least 1, got {batch_size}.")
    was_training, inputs = model.training, inputs.for_model(model)
    if was_training:  # only then: `train` clears the biLM's caches
        model.train(False)
    find = find or model.predict
    predictions: list[Any] = [None] * len(examples)
    lengths = [task.count_words(example) for example in examples]
    for rows in batch_examples(examples, lengths, 1 if task.needs_batch_size_one else batch_size):
        batch = task.make_batch([examples[row] for row in rows], inputs)
        batch = {name: x.to(model.device) for name, x in batch.items()}
        for row, prediction in zip(rows, find(**batch), strict=True):
            predictions[row] = prediction
        if bar is not None:
            bar.update(len(rows))
    if was_training:
        model.train()
    return predictions

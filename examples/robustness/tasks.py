"""Four tasks for frozen word vectors, each with a linear head."""

import gzip
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_elmo.tasks.labels import find_spans, label_words
from hf_elmo.tasks.readers import read_columns, read_trees

Array = npt.NDArray[Any]
NUM_EPOCHS = 20  # of a head; the best epoch on the dev set is kept
BATCH_SIZE = 64  # sentences; 16 times as many words if each has a label
LEARNING_RATE = 1e-3


class Example(NamedTuple):
    """A sentence with a label for each word, or one label."""

    words: list[str]
    labels: list[str]


def read_tags(path: Path) -> list[Example]:
    """Read words and universal parts of speech from CoNLL-U."""
    examples = []
    for block in gzip.decompress(path.read_bytes()).decode().split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines()]
        rows = [row for row in rows if row[0].isdigit()]  # no comments, ranges, empty nodes
        if rows:
            examples.append(Example([row[1] for row in rows], [row[3] for row in rows]))
    return examples


def read_entities(path: Path) -> list[Example]:
    """Read words and BIO labels from columns."""
    return [
        Example(one.words, label_words(one.spans, len(one.words), "BIO"))
        for one in read_columns(path)
    ]


def read_sentiment(path: Path) -> list[Example]:
    """Read sentences and their labels from trees."""
    return [Example(one.words, [one.label]) for one in read_trees(path)]


def read_questions(path: Path) -> list[Example]:
    """Read questions and their class from lines of `CLASS:subclass question`."""
    rows = [line.split() for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    return [Example(words, [label.split(":")[0]]) for label, *words in rows]


class Task(NamedTuple):
    """A task.

    Attributes:
        files: Train, dev and test, in the folder of data; without dev, a tenth of train is used.
        read: Reader of a file.
        has_spans: Whether the score is F1 of spans; else it is accuracy.
        is_tagged: Whether each word has a label.
    """

    files: tuple[str, str | None, str]
    read: Callable[[Path], list[Example]]
    has_spans: bool = False
    is_tagged: bool = False


TASKS = {
    "pos": Task(
        (
            "ewt/en_ewt-ud-train.conllu.gz",
            "ewt/en_ewt-ud-dev.conllu.gz",
            "ewt/en_ewt-ud-test.conllu.gz",
        ),
        read_tags,
        is_tagged=True,
    ),
    "entities": Task(
        (
            "ner/wikigold/train.conll.gz",
            "ner/wikigold/dev.conll.gz",
            "ner/wikigold/test.conll.gz",
        ),
        read_entities,
        has_spans=True,
        is_tagged=True,
    ),
    "sentiment": Task(("sst5/train.txt.gz", "sst5/dev.txt.gz", "sst5/test.txt.gz"), read_sentiment),
    "questions": Task(("trec/train.txt.gz", None, "trec/test.txt.gz"), read_questions),
}


def read_task(task: Task, data: Path, max_train: int, max_test: int) -> list[list[Example]]:
    """Read a random part of the train, dev and test sets, the same for every encoder."""
    train, dev, test = (task.read(data / name) if name else [] for name in task.files)
    rng = random.Random(0)
    for part in (train, dev, test):
        rng.shuffle(part)
    if not dev:
        dev, train = train[: len(train) // 10], train[len(train) // 10 :]
    return [train[:max_train], dev[:max_test], test[:max_test]]


class Features:
    """Inputs of the head: word vectors, or the mean and maximum of each sentence's word vectors."""

    def __init__(self, vectors: Sequence[Array], task: Task) -> None:
        if task.is_tagged:
            rows = np.concatenate(vectors)
        else:
            rows = np.stack([np.concatenate([x.mean(0), x.max(0)]) for x in vectors])
        self.rows = torch.from_numpy(rows.astype(np.float16))
        self.lengths = [len(x) if task.is_tagged else 1 for x in vectors]


class Head(nn.Module):
    """Linear classifier of standardised features."""

    def __init__(self, features: Tensor, labels: Sequence[str]) -> None:
        super().__init__()
        self.labels = sorted(set(labels))
        x = features.float()
        self.mean, self.deviation = x.mean(0), x.std(0).clamp(min=1e-4)
        self.linear = nn.Linear(x.shape[1], len(self.labels))

    def forward(self, features: Tensor) -> Tensor:
        """Compute the logits of each row."""
        return self.linear((features.float() - self.mean) / self.deviation)

    @torch.inference_mode()
    def count(self, task: Task, features: Features, examples: Sequence[Example]) -> Array:
        """Predict labels; count each example's part of the score's numerator and denominator."""
        found = [self.labels[i] for i in self(features.rows).argmax(1).tolist()]
        counts = []
        for example, length in zip(examples, features.lengths, strict=True):
            mine, found = found[:length], found[length:]
            if task.has_spans:
                gold, spans = set(find_spans(example.labels)), set(find_spans(mine))
                counts.append((2 * len(gold & spans), len(gold) + len(spans)))
            else:
                right = sum(a == b for a, b in zip(mine, example.labels, strict=True))
                counts.append((right, length))
        return np.array(counts, np.int32)


def score(counts: Array) -> float:
    """Score examples from their counts: accuracy or F1."""
    right, total = counts.sum(axis=0)
    return float(right / max(total, 1))


def train_head(
    task: Task,
    train: tuple[Features, Sequence[Example]],
    dev: tuple[Features, Sequence[Example]],
    seed: int,
) -> tuple[Head, float]:
    """Train a head; keep the epoch with the best score on the dev set, and return that score."""
    torch.manual_seed(seed)
    features, examples = train
    names = [label for example in examples for label in example.labels]
    head = Head(features.rows, names)
    rows = {label: row for row, label in enumerate(head.labels)}
    targets = torch.tensor([rows[name] for name in names])
    optimizer = torch.optim.Adam(head.parameters(), lr=LEARNING_RATE)
    batch_size = 16 * BATCH_SIZE if task.is_tagged else BATCH_SIZE
    best, best_state = -1.0, head.state_dict()
    for _ in range(NUM_EPOCHS):
        for batch in torch.randperm(len(targets)).split(batch_size):
            optimizer.zero_grad()
            F.cross_entropy(head(features.rows[batch]), targets[batch]).backward()
            optimizer.step()
        found = score(head.count(task, *dev))
        if found > best:
            best, best_state = found, {n: x.clone() for n, x in head.state_dict().items()}
    head.load_state_dict(best_state)
    return head, best

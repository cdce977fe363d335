"""Layers of the biLM for words of annotated text, shared by Tables 4, 5 and 6."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from runs import Settings, hold_to_settings, write_file

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.bundled import resolve_name
from hf_elmo.inference.embedding import embed

Array: TypeAlias = npt.NDArray[Any]


class Bilm(NamedTuple):
    """A biLM and its tokenizer."""

    model: ElmoModel
    tokenizer: ElmoTokenizer

    @property
    def num_layers(self) -> int:
        """Number of layers, including layer 0."""
        return int(self.model.config.num_hidden_layers or 0) + 1

    def embed(self, sentences: Iterable[Sequence[str]]) -> Iterator[Array]:
        """Compute all layers of each sentence, shape `(layers, words, hidden_size)`."""
        return embed(sentences, self.model, self.tokenizer, layers="all")


def load_bilm(name: str) -> Bilm:
    """Load a biLM."""
    folder = resolve_name(name)
    return Bilm(ElmoModel.from_pretrained(folder), ElmoTokenizer.from_pretrained(folder))


def draw_bilm(bilm: Bilm) -> Bilm:
    """Make a biLM of the same size with random weights."""
    torch.manual_seed(0)
    return Bilm(ElmoModel(bilm.model.config).eval(), bilm.tokenizer)


def normalise(vectors: Array) -> Array:
    """Divide vectors by their lengths; zeros stay zeros."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def read_lines(path: Path) -> list[str]:
    """Read the lines of a compressed file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def read_sentences(path: Path) -> list[dict[str, Any]]:
    """Read sentences with word senses, one JSON object per line."""
    return [json.loads(line) for line in read_lines(path)]


def score_accuracy(counts: Array) -> float:
    """Compute the accuracy in percent from counts of right and all answers, shape `(texts, 2)`."""
    right, total = counts.sum(axis=0)
    return 100 * float(right) / float(total)


def count_right(is_right: Array, texts: Sequence[Any]) -> Array:
    """Count right answers and all answers of each text, shape `(seeds = 1, texts, 2)`."""
    names, rows = np.unique(np.array(texts), return_inverse=True)
    right = np.bincount(rows, weights=is_right, minlength=len(names))
    return np.stack([right, np.bincount(rows, minlength=len(names))], axis=1)[None]


def make_once(name: str, compute: Callable[[Settings], Any], settings: Settings) -> None:
    """Compute a table and write it as JSON, unless the file exists."""
    hold_to_settings(settings)
    path = settings.results / f"{name}.json"
    if not path.exists():
        write_file(path, json.dumps(compute(settings), ensure_ascii=False) + "\n")


def read_table(name: str, results: Path) -> Any:
    """Read a computed table; None = not computed yet."""
    path = results / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None

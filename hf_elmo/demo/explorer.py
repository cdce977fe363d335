"""What the demo shows: neighbours in context, maps of senses, guesses."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from hf_elmo.bundled import resolve_name
from hf_elmo.inference.embedding import embed
from hf_elmo.language_model.models import load_language_model, load_vocabulary
from hf_elmo.language_model.scores import Direction, find_substitutes
from hf_elmo.language_model.vocabulary import TargetVocabulary
from hf_elmo.loading import check_name
from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.modeling_heads import ElmoForPreTraining

SENTENCES = Path(__file__).with_name("sentences.txt")
MAX_WORDS = 60  # of a sentence that a visitor types
MAX_CHARACTERS = 100  # of a word
GUESSES = 8

Array = NDArray[np.float32]


class Comparison(NamedTuple):
    """One word in its sentence beside all words of the collection.

    Attributes:
        products: Dot product of layer i of the word and layer j of each word of the collection,
            shape `(layers, layers, collection)`: with them, any mix can be compared.
        norm: Dot products of the word's own layers, shape `(layers, layers)`.
    """

    products: Array
    norm: Array


class Neighbor(NamedTuple):
    """A word of the collection, by its sentence and position there, and how near it is."""

    place: tuple[int, int]
    cosine: float


class Explorer:
    """A biLM, and a collection of sentences among whose words neighbours are looked for.

    Args:
        model: The biLM, alone or with its softmax, in evaluation mode.
        tokenizer: Its tokenizer.
        vocabulary: The target words of its softmax; None = no guesses.
        collection: Pairs of a sense, such as `"bank: river"`, or `""`, and the words.
    """

    def __init__(
        self,
        model: ElmoModel | ElmoForPreTraining,
        tokenizer: PreTrainedTokenizerBase,
        vocabulary: TargetVocabulary | None,
        collection: Sequence[tuple[str, list[str]]],
    ) -> None:
        self.model, self.tokenizer, self.vocabulary = model, tokenizer, vocabulary
        self.senses = [sense for sense, _ in collection]
        self.sentences = [words for _, words in collection]
        layers = list(embed(self.sentences, model, tokenizer, layers="all"))
        self.places = [
            (number, position)
            for number, words in enumerate(self.sentences)
            for position, word in enumerate(words)
            if word.isalpha()
        ]
        # (layers, collection, width)
        self.vectors = np.stack([layers[n][:, position] for n, position in self.places], axis=1)

    @classmethod
    def load(cls, name: str) -> Self:
        """Load a model by its folder or name, with its softmax where it has one."""
        name = resolve_name(name)
        check_name(name)
        if AutoConfig.from_pretrained(name).vocab_size and load_vocabulary(name) is not None:
            return cls(*load_language_model(name), read_collection())
        tokenizer = AutoTokenizer.from_pretrained(name)
        return cls(ElmoModel.from_pretrained(name).eval(), tokenizer, None, read_collection())

    @property
    def num_layers(self) -> int:
        """Layers that can be mixed, the words' spelling included."""
        return len(self.vectors)

    def compare(self, words: Sequence[str], position: int) -> Comparison:
        """Compare a word in its sentence with every word of the collection.

        Args:
            words: The sentence.
            position: Number of the word, from 0.

        Raises:
            ValueError: If there is no such word, or there are more or longer ones than are taken.
        """
        check_words(words)
        if not 0 <= position < len(words):
            raise ValueError(f"Expected a position from 0 to {len(words) - 1}, got {position}.")
        (layers,) = embed([words], self.model, self.tokenizer, layers="all")
        vectors = layers[:, position]
        return Comparison(
            np.einsum("iw,jnw->ijn", vectors, self.vectors, optimize=True), vectors @ vectors.T
        )

    def norms(self) -> Array:
        """Multiply the layers of each word of the collection, shape `(layers, layers, words)`."""
        return np.einsum("inw,jnw->ijn", self.vectors, self.vectors, optimize=True)

    def find_neighbors(
        self, words: Sequence[str], position: int, weights: Sequence[float], *, count: int = 8
    ) -> list[Neighbor]:
        """Find the words of other sentences that are nearest to a word, by a mix of the layers.

        Args:
            words: The sentence.
            position: Number of the word, from 0.
            weights: Share of each layer; `[1, 0, 0]` = the spelling alone.
            count: Words to return.
        """
        comparison = self.compare(words, position)
        w = np.asarray(weights, dtype=np.float32)
        lengths = np.sqrt(np.einsum("i,j,ijn->n", w, w, self.norms()) * (w @ comparison.norm @ w))
        cosines = np.einsum("i,j,ijn->n", w, w, comparison.products) / np.maximum(lengths, 1e-12)
        order = np.argsort(-cosines, kind="stable").tolist()
        others = [n for n in order if self.sentences[self.places[n][0]] != list(words)]
        return [Neighbor(self.places[n], float(cosines[n])) for n in others[:count]]

    def guess(self, words: Sequence[str], position: int) -> dict[Direction, list[str]]:
        """Find the words that each direction expects in a place; nothing without a softmax."""
        check_words(words)
        if self.vocabulary is None or not isinstance(self.model, ElmoForPreTraining):
            return {}
        loaded = self.model, self.tokenizer, self.vocabulary
        directions: tuple[Direction, ...] = ("forward", "backward", "both")
        if not self.model.config.bidirectional:
            directions = directions[:1]
        guesses: dict[Direction, list[str]] = {}
        for direction in directions:
            found = find_substitutes(words, position, *loaded, count=GUESSES, direction=direction)
            guesses[direction] = [substitute.word for substitute in found]
        return guesses

    def map_senses(self, word: str) -> dict[str, Any]:
        """Lay the uses of a word out in the plane, one map for each layer.

        Returns:
            `senses` and `sentences` of the uses, and `layers`: points `[x, y]` from -1 to 1. Each
            map is turned so that it is as near as can be to that of the layer above.
        """
        uses = [
            row
            for row, (number, position) in enumerate(self.places)
            if self.sentences[number][position] == word and self.senses[number].startswith(word)
        ]
        maps: list[Array] = []
        for vectors in self.vectors[::-1, uses]:
            points = _flatten(vectors)
            maps.insert(0, _turn(points, maps[0]) if maps else points)
        numbers = [self.places[row][0] for row in uses]
        return {
            "word": word,
            "senses": [self.senses[number].partition(": ")[2] for number in numbers],
            "sentences": numbers,
            "layers": [points.round(3).tolist() for points in maps],
        }


def read_collection(path: Path = SENTENCES) -> list[tuple[str, list[str]]]:
    """Read the sentences of the demo, each with the sense of its word or `""`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t") for line in lines if not line.startswith("#")]
    return [(sense, text.split()) for sense, text in pairs]


def check_words(words: Sequence[str]) -> None:
    """Check a sentence that comes from outside.

    Raises:
        ValueError: If it has no words, too many, or too long ones.
    """
    if not 0 < len(words) <= MAX_WORDS:
        raise ValueError(f"Expected a sentence of 1 to {MAX_WORDS} words, got {len(words)}.")
    longest = max(map(len, words))
    if longest > MAX_CHARACTERS:
        raise ValueError(f"Expected words of at most {MAX_CHARACTERS} characters, got {longest}.")


def _flatten(vectors: Array) -> Array:
    """Project vectors on their two main axes, the farthest point at a distance of 1."""
    centred = vectors - vectors.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    points = left[:, :2] * values[:2]
    farthest = np.linalg.norm(points, axis=1).max()
    # What is alike but for rounding is one point.
    return points / farthest if farthest > 1e-3 * np.abs(vectors).max() else 0 * points


def _turn(points: Array, target: Array) -> Array:
    """Turn and mirror points in the plane until they are nearest to others (Procrustes)."""
    left, _, right = np.linalg.svd(points.T @ target)
    return points @ (left @ right)

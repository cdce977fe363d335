"""Sentences of the demo with their vectors, and maps of the uses of one word."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hf_elmo.inference.embedding import embed
from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.modeling_heads import ElmoForPreTraining
from hf_elmo.tokenization_elmo import ElmoTokenizer

SENTENCES = Path(__file__).with_name("sentences.txt")

Array = NDArray[np.float32]


class SenseMap(NamedTuple):
    """Planes in which the uses of a word are drawn, one plane for each layer.

    A vector is drawn at the point `(vector - origin) @ axes`; the farthest use has a distance of 1.

    Attributes:
        uses: Indices of the word's uses in `Collection.places`.
        origins: Mean of the uses, shape `(layers, width)`.
        axes: Axes of the planes, shape `(layers, width, 2)`.
    """

    uses: list[int]
    origins: Array
    axes: Array


class Collection:
    """Sentences with the vectors of their words, one for each layer.

    Args:
        model: The biLM, alone or with its softmax, in evaluation mode.
        tokenizer: Tokenizer of the model.
        sentences: Pairs of a sense, such as `"bank: river"` or `""`, and the words of a sentence.

    Attributes:
        places: Indices of the sentence and of the word, for each word that consists of letters.
        vectors: Vectors of these words, shape `(layers, places, width)`.
    """

    def __init__(
        self,
        model: ElmoModel | ElmoForPreTraining,
        tokenizer: ElmoTokenizer,
        sentences: Sequence[tuple[str, list[str]]],
    ) -> None:
        self.senses = [sense for sense, _ in sentences]
        self.sentences = [words for _, words in sentences]
        layers = list(embed(self.sentences, model, tokenizer, layers="all"))
        self.places = [
            (number, position)
            for number, words in enumerate(self.sentences)
            for position, word in enumerate(words)
            if word.isalpha()
        ]
        self.vectors = np.stack([layers[n][:, position] for n, position in self.places], axis=1)

    def map_senses(self, word: str) -> SenseMap:
        """Find the planes that show the uses of a word best.

        Each plane is rotated so that its points are close to those of the layer above.
        """
        uses = [
            row
            for row, (number, position) in enumerate(self.places)
            if self.sentences[number][position] == word and self.senses[number].startswith(word)
        ]
        vectors = self.vectors[:, uses]
        origins = vectors.mean(axis=1)
        axes: list[Array] = []
        above = None
        for layer in (vectors - origins[:, None])[::-1]:
            plane = _find_axes(layer)
            if above is not None:  # orthogonal Procrustes
                left, _, right = np.linalg.svd((layer @ plane).T @ above)
                plane = plane @ (left @ right)
            above = layer @ plane
            axes.insert(0, plane)
        return SenseMap(uses, origins, np.stack(axes))


def read_collection() -> list[tuple[str, list[str]]]:
    """Read the sentences of the demo, each with the sense of its ambiguous word, or with `""`."""
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t") for line in lines if not line.startswith("#")]
    return [(sense, text.split()) for sense, text in pairs]


def _find_axes(centred: Array) -> Array:
    """Return the two principal axes, shape `(width, 2)`, scaled to a largest distance of 1."""
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2].T
    farthest = np.linalg.norm(centred @ axes, axis=1).max()
    # Vectors that differ only by rounding errors become one point.
    return axes / farthest if farthest > 1e-5 else 0 * axes

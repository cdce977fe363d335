"""The demo's sentences with their vectors, and maps of senses."""

import numpy as np
import pytest
from collection import Collection, read_collection

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.inference.embedding import embed

SENTENCES = [
    ("bank: river", ["the", "bank", "of", "the", "river"]),
    ("bank: river", ["a", "green", "bank", "."]),
    ("bank: money", ["the", "bank", "paid"]),
    ("", ["no", "bark", "here"]),
]


@pytest.fixture
def collection(tiny_model: ElmoModel) -> Collection:
    return Collection(tiny_model, ElmoTokenizer(), SENTENCES)


def test_vectors_are_those_of_the_words(collection: Collection, tiny_model: ElmoModel) -> None:
    row = collection.places.index((2, 1))
    (layers,) = embed([SENTENCES[2][1]], tiny_model, ElmoTokenizer(), layers="all")
    np.testing.assert_allclose(collection.vectors[:, row], layers[:, 1], atol=1e-5)


def test_punctuation_has_no_place(collection: Collection) -> None:
    assert all(SENTENCES[n][1][position] != "." for n, position in collection.places)


def test_a_map_shows_the_uses_of_the_word(collection: Collection) -> None:
    uses = collection.map_senses("bank").uses
    assert [collection.places[row] for row in uses] == [(0, 1), (1, 2), (2, 1)]


def find_points(collection: Collection, layer: int) -> np.ndarray:
    found = collection.map_senses("bank")
    return (collection.vectors[layer, found.uses] - found.origins[layer]) @ found.axes[layer]


@pytest.mark.parametrize("layer", [1, 2])
def test_points_of_a_map_keep_the_distances_of_a_plane(collection: Collection, layer: int) -> None:
    points = find_points(collection, layer)
    vectors = collection.vectors[layer, collection.map_senses("bank").uses]  # three, in one plane
    distances, expected = (np.linalg.norm(x[:, None] - x[None], axis=-1) for x in (points, vectors))
    assert np.linalg.norm(points, axis=1).max() == pytest.approx(1.0, abs=1e-4)
    np.testing.assert_allclose(distances / distances[0, 1], expected / expected[0, 1], rtol=1e-3)


def test_a_map_is_rotated_to_that_of_the_layer_above(collection: Collection) -> None:
    product = find_points(collection, 1).T @ find_points(collection, 2)
    # No rotation or reflection makes the sum of products larger: symmetric, no negative value.
    np.testing.assert_allclose(product, product.T, atol=1e-4)
    assert np.linalg.eigvalsh(product).min() > -1e-4


def test_a_map_of_spellings_is_one_point(collection: Collection) -> None:
    assert not collection.map_senses("bank").axes[0].any()


def test_the_collection_has_uses_of_each_sense() -> None:
    senses = [sense for sense, _ in read_collection()]
    assert all(senses.count(sense) >= 8 for sense in set(senses))

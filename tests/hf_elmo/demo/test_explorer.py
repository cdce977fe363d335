"""The demo's neighbours, maps and guesses."""

import numpy as np
import pytest
import torch

from hf_elmo import ElmoForPreTraining, ElmoModel, ElmoTokenizer
from hf_elmo.bundled import BUNDLED_NAME
from hf_elmo.demo.explorer import MAX_CHARACTERS, MAX_WORDS, Explorer, read_collection
from hf_elmo.demo.page import EXAMPLES
from hf_elmo.inference.embedding import embed
from hf_elmo.language_model.vocabulary import TargetVocabulary

COLLECTION = [
    ("bank: river", ["the", "bank", "of", "the", "river"]),
    ("bank: river", ["a", "green", "bank", "."]),
    ("bank: money", ["the", "bank", "paid"]),
    ("", ["no", "bark", "here"]),
]


@pytest.fixture
def explorer(tiny_model: ElmoModel) -> Explorer:
    return Explorer(tiny_model, ElmoTokenizer(), None, COLLECTION)


def test_products_give_the_cosine_of_any_mix(explorer: Explorer) -> None:
    words, weights = ["another", "bank"], np.array([0.5, 0.2, 0.3], dtype=np.float32)
    comparison = explorer.compare(words, 1)
    (layers,) = embed([words], explorer.model, explorer.tokenizer, layers="all")
    query = weights @ layers[:, 1]
    others = np.einsum("i,inw->nw", weights, explorer.vectors)
    products = np.einsum("i,j,ijn->n", weights, weights, comparison.products)
    norms = np.einsum("i,j,ijn->n", weights, weights, explorer.norms())
    np.testing.assert_allclose(products, others @ query, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(weights @ comparison.norm @ weights, query @ query, rtol=1e-4)
    np.testing.assert_allclose(norms, (others**2).sum(axis=1), rtol=1e-4)


def test_neighbors_by_spelling_alone_are_equal_words(explorer: Explorer) -> None:
    found = explorer.find_neighbors(["my", "bank"], 1, [1, 0, 0], count=3)
    assert [neighbor.place for neighbor in found] == [(0, 1), (1, 2), (2, 1)]
    assert [neighbor.cosine for neighbor in found] == pytest.approx([1.0] * 3, abs=1e-4)


def test_a_sentence_is_no_neighbor_of_itself(explorer: Explorer) -> None:
    words = COLLECTION[0][1]
    found = explorer.find_neighbors(words, 1, [0, 0, 1], count=100)
    assert len(found) == len(explorer.places) - len(words)
    assert 0 not in {neighbor.place[0] for neighbor in found}


def test_neighbors_are_sorted_by_their_cosine(explorer: Explorer) -> None:
    cosines = [n.cosine for n in explorer.find_neighbors(["my", "bank"], 1, [0, 1, 1])]
    assert cosines == sorted(cosines, reverse=True)


def test_punctuation_is_no_neighbor(explorer: Explorer) -> None:
    assert all(explorer.sentences[n][position] != "." for n, position in explorer.places)


def test_a_map_has_a_point_for_each_use_and_layer(explorer: Explorer) -> None:
    found = explorer.map_senses("bank")
    assert found["senses"] == ["river", "river", "money"]
    assert found["sentences"] == [0, 1, 2]
    assert np.shape(found["layers"]) == (3, 3, 2)
    assert np.linalg.norm(found["layers"], axis=-1).max() == pytest.approx(1.0, abs=0.01)


def test_a_map_of_spellings_is_one_point(explorer: Explorer) -> None:
    assert not np.any(explorer.map_senses("bank")["layers"][0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "1 to 60 words, got 0"),
        (["a"] * (MAX_WORDS + 1), "1 to 60 words, got 61"),
        (["a" * (MAX_CHARACTERS + 1)], "at most 100 characters, got 101"),
    ],
)
def test_sentences_from_outside_are_bounded(
    explorer: Explorer, words: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        explorer.compare(words, 0)


def test_a_position_outside_the_sentence_is_an_error(explorer: Explorer) -> None:
    with pytest.raises(ValueError, match="position from 0 to 1, got -1"):
        explorer.compare(["a", "b"], -1)


def test_without_a_softmax_nothing_is_guessed(explorer: Explorer) -> None:
    assert explorer.guess(["my", "bank"], 1) == {}


def test_each_direction_guesses(tiny_model: ElmoModel) -> None:
    tiny_model.config.vocab_size = 5
    torch.manual_seed(0)
    model = ElmoForPreTraining(tiny_model.config).eval()
    vocabulary = TargetVocabulary(["<S>", "</S>", "<UNK>", "river", "bank"])
    guesses = Explorer(model, ElmoTokenizer(), vocabulary, COLLECTION).guess(["my", "bank"], 1)
    assert set(guesses) == {"forward", "backward", "both"}
    assert all(sorted(words) == ["bank", "river"] for words in guesses.values())


def test_the_bundled_model_tells_the_banks_apart() -> None:
    explorer = Explorer.load(BUNDLED_NAME)
    words = EXAMPLES[0][0].split()
    found = explorer.find_neighbors(words, 4, [0, 0, 1], count=5)
    assert {explorer.senses[neighbor.place[0]] for neighbor in found} == {"bank: river"}


def test_the_collection_has_uses_of_each_sense() -> None:
    senses = [sense for sense, _ in read_collection()]
    assert all(senses.count(sense) >= 8 for sense in set(senses))

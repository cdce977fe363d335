"""Inputs of a task model, made from words."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from hf_elmo import ElmoTokenizer
from hf_elmo.inference.layer_cache import LayerCache
from hf_elmo.tasks import task_inputs
from hf_elmo.tasks.static_vectors import checksum_words, read_static_words
from hf_elmo.tasks.task_inputs import WordInputs

STATIC = {"static_vocab_size": 5, "static_size": 4}


def test_words_are_looked_up_as_written_else_in_lower_case(make_case: Callable[..., Any]) -> None:
    model = make_case("sentiment", **STATIC).model
    inputs = WordInputs(model, ElmoTokenizer(), static_words=["cat", "Cat", "sat"])
    ids = inputs([["Cat", "CAT", "Sat", "dog"], ["cat"]])["static_ids"]
    assert ids.tolist() == [[2, 1, 3, 0], [1, 0, 0, 0]]


def test_the_first_of_equal_words_counts(make_case: Callable[..., Any]) -> None:
    model = make_case("sentiment", **STATIC).model
    inputs = WordInputs(model, ElmoTokenizer(), static_words=["cat", "sat", "cat"])
    assert inputs([["cat", "sat"]])["static_ids"].tolist() == [[1, 2]]


def test_the_rows_of_static_vectors_that_sentences_need_are_found(
    make_case: Callable[..., Any],
) -> None:
    model = make_case("sentiment", **STATIC).model
    inputs = WordInputs(model, ElmoTokenizer(), static_words=["cat", "Cat", "sat"])
    assert inputs.find_rows([["SAT", "Cat"], ["Cat", "dog"]]).tolist() == [0, 2, 3]
    assert inputs.find_rows([]).tolist() == []


def test_a_text_whose_words_have_no_static_vectors_gives_a_warning(
    make_case: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    inputs = WordInputs(make_case("ner").model, ElmoTokenizer(), static_words=["cat", "sat"])
    inputs.warn_of_unknown([["Cat", "sat"], ["the"]])
    WordInputs(make_case("ner").model, ElmoTokenizer()).warn_of_unknown([["dog"]])
    assert not caplog.text
    inputs.warn_of_unknown([["dog", "cat"]])
    assert "1 of 2 words of the text have a static vector." in caplog.text


@pytest.mark.parametrize("place", ["input", "none"])
def test_a_model_gets_what_it_reads(place: str, make_case: Callable[..., Any]) -> None:
    model = make_case("sentiment", elmo_at=place, **STATIC).model
    inputs = WordInputs(model, ElmoTokenizer(), static_words=["cat"])
    assert ("elmo_layers" in inputs([["cat"]])) == (place == "input")


def test_a_model_without_a_bilm_needs_no_layers_beside_a_cache(
    make_case: Callable[..., Any],
) -> None:
    model = make_case("sentiment", elmo_at="none", **STATIC).model
    inputs = WordInputs(model, ElmoTokenizer(), static_words=["cat"], cache=LayerCache(100_000))
    assert set(inputs([["cat"]])) == {"attention_mask", "static_ids"}


def test_ids_stand_beside_static_vectors_whatever_side_the_tokenizer_pads(
    make_case: Callable[..., Any],
) -> None:
    model = make_case("sentiment", elmo={"freeze_bilm": False}, **STATIC).model
    sentences = [["a", "cat"], ["dog"]]
    right, left = (WordInputs(model, ElmoTokenizer(padding_side=s)) for s in ("right", "left"))
    assert torch.equal(left(sentences)["input_ids"], right(sentences)["input_ids"])


def test_inputs_for_a_copy_of_the_model_leave_those_of_the_model(
    make_case: Callable[..., Any],
) -> None:
    case = make_case("sentiment")
    other = deepcopy(case.model)
    assert case.inputs.for_model(other).model is other
    assert case.inputs.model is case.model


def test_layers_computed_ahead_are_those_of_the_model(make_case: Callable[..., Any]) -> None:
    sentences = [["a", "cat"], ["dog"]]
    model = make_case("sentiment").model.train(False)
    batch = WordInputs(model, ElmoTokenizer())(sentences)
    ids = ElmoTokenizer()(
        sentences, is_split_into_words=True, padding=True, padding_side="right", return_tensors="pt"
    )
    with torch.no_grad():
        assert_close(model(**batch).logits, model(**ids).logits, rtol=0, atol=1e-5)


def test_layers_are_computed_once(
    make_case: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_case("sentiment").model
    inputs = WordInputs(model, ElmoTokenizer(), cache=LayerCache(100_000))
    inputs.fill([["a", "cat"], ["dog"]])

    def refuse(sentences: list[list[str]]) -> Iterator[Tensor]:
        raise AssertionError(sentences)

    monkeypatch.setattr(inputs, "_compute", refuse)
    layers = inputs([["dog"], ["a", "cat"]])["elmo_layers"]
    assert layers.shape == (2, 3, 2, 16)  # (batch, layers, tokens, hidden_size)
    assert not layers[0, :, 1].any()


def test_layers_are_not_computed_ahead_for_a_full_cache(
    make_case: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_inputs, "SENTENCES_PER_FILL", 1)
    cache = LayerCache(200)  # one word: 3 layers of 16 values, of 2 bytes
    inputs = WordInputs(make_case("sentiment").model, ElmoTokenizer(), cache=cache)
    computed = []
    compute = inputs._compute
    monkeypatch.setattr(inputs, "_compute", lambda x: compute(computed.extend(x) or x))
    inputs.fill([["dog"], ["a", "cat"], ["a", "dog"]])
    assert computed == [["dog"], ["a", "cat"]]


def test_a_trained_bilm_is_not_cached(make_case: Callable[..., Any]) -> None:
    model = make_case("sentiment", elmo={"freeze_bilm": False}).model
    inputs = WordInputs(model, ElmoTokenizer(), cache=LayerCache(100_000))
    assert "elmo_layers" not in inputs([["dog"]])


def test_a_bilm_that_is_trained_later_is_no_longer_cached(make_case: Callable[..., Any]) -> None:
    model = make_case("sentiment").model
    inputs = WordInputs(model, ElmoTokenizer(), cache=LayerCache(100_000))
    assert "elmo_layers" in inputs([["dog"]])
    model.elmo.requires_grad_(True)
    assert "elmo_layers" not in inputs([["dog"]])


def test_the_words_of_static_vectors_are_saved(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    model = make_case("sentiment", **STATIC).model
    words = ["cat", "Höhe", "a\u2028b", "x\ry"]
    WordInputs(model, ElmoTokenizer(), static_words=words).save(tmp_path)
    path = tmp_path / "static_words.txt"
    assert read_static_words(path, len(words), checksum_words(words)) == words
    assert read_static_words(path, len(words), None) == words


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.removesuffix("\n"),
        lambda text: text + "bird\n",
        lambda text: "dog\ncat\n",
    ],
)
def test_other_words_than_those_of_the_static_vectors_are_refused(
    change: Callable[[str], str], tmp_path: Path
) -> None:
    path = tmp_path / "static_words.txt"
    path.write_text(change("cat\ndog\n"), newline="")
    with pytest.raises(ValueError, match="Expected the 2 words of the model's static vectors in"):
        read_static_words(path, 2, checksum_words(["cat", "dog"]))

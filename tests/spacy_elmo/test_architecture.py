from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from spacy.language import Language
from spacy.tokens import Doc

from hf_elmo import ElmoModel, ElmoTokenizer
from spacy_elmo.architecture import (
    ThincModel,
    compute_layers,
    get_shim,
    iterate_word_layers,
    make_elmo_model,
    train_layers,
)

CLOSE = {"rtol": 0, "atol": 1e-5}  # as in test_component.py


@pytest.fixture
def model(tiny_folder: Path) -> ThincModel:
    return make_elmo_model(str(tiny_folder))


@pytest.fixture
def docs(nlp: Language) -> list[Doc]:
    return [Doc(nlp.vocab, words=words) for words in (["The", " ", "bank"], [], ["A"], [" "])]


def test_layers_are_those_of_the_model_with_zeros_for_white_space(
    model: ThincModel, docs: list[Doc], tiny_model: ElmoModel
) -> None:
    results = model.predict(docs)
    assert [layers.shape for layers, _ in results] == [(3, len(doc), 16) for doc in docs]
    batch = ElmoTokenizer()([["The", "bank"]], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        states = torch.cat(tiny_model(**batch, output_hidden_states=True).hidden_states)
    assert_allclose(results[0].layers[:, [0, 2]], states.numpy(), **CLOSE)
    assert_array_equal(results[0].layers[:, 1], 0)
    assert results[0].segments == [[0, 2]]


def test_training_without_dropout_gives_the_layers_of_inference(
    model: ThincModel, docs: list[Doc]
) -> None:
    model.initialize()
    get_shim(model).load().model.config.dropout = 0.0
    learning, _ = model.begin_update(docs)
    for one, other in zip(learning, model.predict(docs), strict=True):
        assert_allclose(one.layers, other.layers, **CLOSE)


def test_gradients_of_layers_reach_the_bilm(model: ThincModel, docs: list[Doc]) -> None:
    model.initialize()
    results, backprop = model.begin_update(docs)
    backprop([np.ones_like(layers) for layers, _ in results])
    parameters = list(get_shim(model).load().model.parameters())
    assert all(parameter.grad is not None for parameter in parameters)


def test_docs_without_words_can_be_learned_from(model: ThincModel, nlp: Language) -> None:
    model.initialize()
    results, backprop = model.begin_update([Doc(nlp.vocab), Doc(nlp.vocab, words=[" "])])
    assert [layers.shape[1] for layers, _ in results] == [0, 1]
    assert backprop([layers for layers, _ in results]) == []


def test_long_sentences_come_in_parts_unless_whole_ones_are_asked_for(
    model: ThincModel, nlp: Language
) -> None:
    model.attrs["max_batch_tokens"] = 4
    doc = Doc(nlp.vocab, words=["w"] * 10)
    segments = [[list(range(10))]]
    parts = list(iterate_word_layers(model, [doc], segments))
    (whole,) = iterate_word_layers(model, [doc], segments, whole_sentences=True)
    assert len(parts) > 1
    assert [row for part in parts for row in part.rows] == whole.rows
    joined = torch.cat([part.layers for part in parts], dim=1)
    torch.testing.assert_close(joined, whole.layers, **CLOSE)


@pytest.mark.parametrize("whole_sentences", [True, False])
def test_settings_of_inference_are_passed_on(
    whole_sentences: bool, tiny_folder: Path, docs: list[Doc], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def embed(_: Any, **options: Any) -> Iterator[Any]:
        seen.update(options)
        return iter(())

    for name in ("embed_layers", "embed_pieces"):
        monkeypatch.setattr(f"hf_elmo.inference.embedding.{name}", embed)
    model = make_elmo_model(str(tiny_folder), backend="onnx", quantization="int8")
    assert not list(iterate_word_layers(model, docs[:1], [[]], whole_sentences=whole_sentences))
    assert (seen["backend"], seen["quantization"]) == ("onnx", "int8")


def test_layers_of_a_model_in_half_precision_are_float32(
    tiny_folder: Path, docs: list[Doc]
) -> None:
    model = make_elmo_model(str(tiny_folder), dtype="bfloat16")
    (words,) = iterate_word_layers(model, docs[:1], [[[0, 2]]])
    assert words.layers.dtype == torch.float32


@pytest.mark.parametrize("side", ["left", "right"])
def test_training_reads_what_inference_reads_on_either_side_of_the_padding(
    side: str, nlp: Language, tiny_folder: Path
) -> None:
    ElmoTokenizer(padding_side=side).save_pretrained(tiny_folder)
    model = make_elmo_model(str(tiny_folder))
    get_shim(model).load().model.config.dropout = 0.0
    docs = [Doc(nlp.vocab, words=words) for words in (["A", "river", "bank"], ["No"])]
    trained, _ = train_layers(model, docs, [[[0, 1, 2]], [[0]]])
    for doc, got in zip(docs, trained, strict=True):
        (expected,) = compute_layers(model, [doc], [got.segments])
        assert_allclose(got.layers, expected.layers, rtol=0, atol=1e-5)

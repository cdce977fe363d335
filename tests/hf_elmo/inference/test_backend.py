"""The engine is ONNX Runtime where that is right, and PyTorch elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrize
from torch.testing import assert_close

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.bilm import ElmoBilm
from hf_elmo.corpus import SentenceEmbedder
from hf_elmo.inference import backend
from hf_elmo.inference.backend import choose_backend
from hf_elmo.inference.embedding import embed_layers
from hf_elmo.onnx import OrtElmoModel

SENTENCES = [["The", "bank"], ["A", "river", "bank", "."]]


@pytest.fixture
def tokenizer(tiny_model: ElmoModel) -> ElmoTokenizer:
    return ElmoTokenizer(max_characters_per_token=tiny_model.config.max_characters_per_token)


def test_a_model_as_it_was_loaded_is_run_by_onnx_runtime(tiny_model: ElmoModel) -> None:
    assert isinstance(choose_backend(tiny_model), OrtElmoModel)
    assert choose_backend(tiny_model) is choose_backend(tiny_model)


def hook(model: ElmoModel) -> Any:
    return model.forward_lstm.layers[0].register_forward_hook(lambda *_: None)


def parametrize_weight(model: ElmoModel) -> None:
    projection = model.token_encoder.projection
    parametrize.register_parametrization(projection, "weight", torch.nn.Identity())


@pytest.mark.parametrize(
    "change",
    [lambda m: m.train(), lambda m: m.bfloat16(), lambda m: m.double(), hook, parametrize_weight],
    ids=["training", "bfloat16", "float64", "hook", "parametrization"],
)
def test_a_changed_model_is_run_by_pytorch(
    tiny_model: ElmoModel, change: Callable[[ElmoModel], Any]
) -> None:
    change(tiny_model)
    assert choose_backend(tiny_model) is tiny_model
    with pytest.raises(ValueError, match="Expected a model that ONNX Runtime can compute, got one"):
        choose_backend(tiny_model, "onnx")


def test_pytorch_is_used_where_it_is_asked_for(tiny_model: ElmoModel) -> None:
    assert choose_backend(tiny_model, "torch") is tiny_model


def test_a_large_model_in_float32_is_run_by_pytorch_where_onednn_is(
    tiny_model: ElmoModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "LARGE_STEP", 1)
    monkeypatch.setattr(backend, "can_pack", lambda *_: True)
    assert choose_backend(tiny_model) is tiny_model
    assert isinstance(choose_backend(tiny_model, "onnx"), OrtElmoModel)
    assert isinstance(choose_backend(tiny_model, quantization="int8"), OrtElmoModel)
    monkeypatch.setattr(backend, "can_pack", lambda *_: False)
    assert isinstance(choose_backend(tiny_model), OrtElmoModel)


def test_an_unknown_backend_is_refused(tiny_model: ElmoModel) -> None:
    with pytest.raises(ValueError, match="Expected backend auto, torch or onnx, got 'cuda'"):
        choose_backend(tiny_model, "cuda")  # type: ignore[arg-type]


def test_int8_needs_onnx_runtime(tiny_model: ElmoModel) -> None:
    with pytest.raises(ValueError, match="Expected quantization None with backend torch"):
        choose_backend(tiny_model, "torch", "int8")


def test_without_onnx_runtime_pytorch_is_used(
    tiny_model: ElmoModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_elmo.onnx.support.find_spec", lambda name: None)
    assert choose_backend(tiny_model) is tiny_model
    with pytest.raises(ValueError, match="onnxruntime is not installed"):
        choose_backend(tiny_model, "onnx")


def write_in_place(model: ElmoModel) -> None:
    with torch.no_grad():
        model.forward_lstm.layers[0].bias[0] += 1


def write_through_data(model: ElmoModel) -> None:
    model.backward_lstm.layers[1].state_weight.data.mul_(2)
    model.clear_caches()


def change_the_configuration(model: ElmoModel) -> None:
    model.config.forget_bias = 0.5


@pytest.mark.parametrize("change", [write_in_place, write_through_data, change_the_configuration])
def test_vectors_are_never_those_of_earlier_weights(
    tiny_model: ElmoModel, tokenizer: ElmoTokenizer, change: Callable[[ElmoModel], None]
) -> None:
    before = list(embed_layers(SENTENCES, tiny_model, tokenizer, backend="onnx"))
    change(tiny_model)
    after = list(embed_layers(SENTENCES, tiny_model, tokenizer, backend="onnx"))
    expected = list(embed_layers(SENTENCES, tiny_model, tokenizer, backend="torch"))
    assert not torch.equal(before[1], after[1])
    assert_close(after, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("max_batch_tokens", [1, 7, 2048])
def test_windows_are_exact_with_both_engines(
    tiny_model: ElmoModel, tokenizer: ElmoTokenizer, max_batch_tokens: int
) -> None:
    sentences = [*SENTENCES, [], ["word", "by", "word"] * 20]
    expected = list(embed_layers(sentences, tiny_model, tokenizer, backend="torch"))
    actual = embed_layers(
        sentences, tiny_model, tokenizer, backend="onnx", max_batch_tokens=max_batch_tokens
    )
    assert_close(list(actual), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("chosen", "kind"), [("torch", ElmoModel), ("auto", OrtElmoModel)])
def test_embed_computes_by_the_engine_that_was_asked_for(
    chosen: backend.Backend, kind: type, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    run_bilm = ElmoBilm.run_bilm
    monkeypatch.setattr(
        ElmoBilm, "run_bilm", lambda self, *args: ran.append(type(self)) or run_bilm(self, *args)
    )
    SentenceEmbedder(model=str(tiny_folder), backend=chosen, device="cpu").embed([["A", "bank"]])
    assert set(ran) == {kind}

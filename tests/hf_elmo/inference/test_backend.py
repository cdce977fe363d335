"""The engine is ONNX Runtime where that is right, and PyTorch elsewhere."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils import parametrize
from torch.testing import assert_close

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.bilm import ElmoBilm
from hf_elmo.corpus import SentenceEmbedder
from hf_elmo.inference import backend
from hf_elmo.inference.backend import Quantization, choose_backend, is_onnx_default
from hf_elmo.inference.embedding import embed_layers
from hf_elmo.onnx import OrtElmoModel

SENTENCES = [["The", "bank"], ["A", "river", "bank", "."]]


@pytest.fixture
def tokenizer(tiny_model: ElmoModel) -> ElmoTokenizer:
    return ElmoTokenizer(max_characters_per_token=tiny_model.config.max_characters_per_token)


def test_a_model_as_it_was_loaded_is_run_by_onnx_runtime(tiny_model: ElmoModel) -> None:
    assert isinstance(choose_backend(tiny_model), OrtElmoModel)
    assert choose_backend(tiny_model) is choose_backend(tiny_model)


def test_another_quantization_than_the_model_has_is_refused(tiny_model: ElmoModel) -> None:
    exact = OrtElmoModel.from_model(tiny_model)
    with pytest.raises(ValueError, match=r"quantization None .* quantization='int8'\)"):
        choose_backend(exact, quantization="int8")
    rounded = OrtElmoModel.from_model(tiny_model, quantization="int8")
    assert choose_backend(rounded, quantization="int8") is rounded


def hook(model: ElmoModel) -> Any:
    return model.forward_lstm.layers[0].register_forward_hook(lambda *_: None)


def parametrize_weight(model: ElmoModel) -> None:
    projection = model.token_encoder.projection
    parametrize.register_parametrization(projection, "weight", torch.nn.Identity())


@pytest.mark.parametrize(
    "change",
    [lambda m: m.train(), lambda m: m.double(), hook, parametrize_weight],
    ids=["training", "float64", "hook", "parametrization"],
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


def test_a_model_that_is_not_loaded_yet_gets_the_engine_of_a_loaded_one(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_onnx_default(str(tiny_folder))
    monkeypatch.setattr(backend, "LARGE_STEP", 1)
    monkeypatch.setattr(backend, "can_pack", lambda *_: True)
    assert not is_onnx_default(str(tiny_folder))


def test_a_folder_with_an_adapter_is_not_for_onnx_runtime(tiny_folder: Path) -> None:
    (tiny_folder / "adapter_config.json").write_text("{}")
    assert not is_onnx_default(str(tiny_folder))


class Row(NamedTuple):
    """A row of the table of `choose_backend`."""

    dtype: torch.dtype
    quantization: Quantization
    has_instructions: bool
    is_large: bool
    engine: type[ElmoBilm]
    tolerance: float  # of the greatest value


TABLE = [
    Row(torch.float32, None, True, False, OrtElmoModel, 1e-5),
    Row(torch.float32, None, True, True, ElmoModel, 1e-5),
    Row(torch.bfloat16, None, True, False, OrtElmoModel, 1e-5),
    Row(torch.bfloat16, None, True, True, ElmoModel, 0.03),
    Row(torch.bfloat16, None, False, False, OrtElmoModel, 1e-5),
    Row(torch.float16, None, False, False, OrtElmoModel, 1e-5),
    Row(torch.float16, None, False, True, ElmoModel, 4e-3),
    Row(torch.float32, "int8", False, False, OrtElmoModel, 0.1),  # 0.9 if they saturated
    Row(torch.bfloat16, "int8", False, True, OrtElmoModel, 0.1),
]


@pytest.mark.parametrize("row", TABLE)
def test_each_row_of_the_table_computes_nearly_what_float64_does(
    row: Row, tiny_model: ElmoModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In 8 bits these are the largest values, so that the sum of two products exceeds 16 bits.
    config = tiny_model.config
    for name, weight in tiny_model.named_parameters():
        if "state_weight" in name or "input_weight" in name:
            weight.data.fill_(1 / config.projection_size)
    tiny_model.clear_caches()
    tiny_model.to(row.dtype)
    packed, sizes = torch.ones(6, config.projection_size), [2, 2, 1, 1]
    expected, _ = copy.deepcopy(tiny_model).double().run_bilm(packed.double(), sizes)
    monkeypatch.setattr(backend, "LARGE_STEP", 1 if row.is_large else 2**60)
    monkeypatch.setattr(backend, "can_pack", lambda *_: True)
    chosen = choose_backend(tiny_model, "auto", row.quantization)
    assert type(chosen) is row.engine
    actual, _ = chosen.run_bilm(packed.to(chosen.dtype), sizes)
    for layer, exact in zip(actual, expected, strict=True):
        bound = row.tolerance * exact.abs().max().item()
        assert_close(layer.double(), exact, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_vectors_have_the_dtype_of_the_model(
    dtype: torch.dtype, tiny_model: ElmoModel, tokenizer: ElmoTokenizer
) -> None:
    tiny_model.to(dtype)
    assert isinstance(choose_backend(tiny_model), OrtElmoModel)
    (layers,) = embed_layers([["bank"]], tiny_model, tokenizer)
    assert layers.dtype == dtype


def test_an_unknown_backend_is_refused(tiny_model: ElmoModel) -> None:
    with pytest.raises(ValueError, match="Expected backend auto, torch or onnx, got 'cuda'"):
        choose_backend(tiny_model, "cuda")  # type: ignore[arg-type]


def test_int8_needs_onnx_runtime(tiny_model: ElmoModel) -> None:
    with pytest.raises(ValueError, match="Expected quantization None with backend torch"):
        choose_backend(tiny_model, "torch", "int8")


def test_without_onnx_runtime_pytorch_is_used(
    tiny_model: ElmoModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_elmo.onnx.support.has_onnxruntime", lambda: False)
    assert choose_backend(tiny_model) is tiny_model
    with pytest.raises(ValueError, match="onnxruntime is not installed"):
        choose_backend(tiny_model, "onnx")


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


def test_a_wrapped_model_in_bfloat16_is_embedded(
    tiny_model: ElmoModel, tokenizer: ElmoTokenizer
) -> None:
    class Wrapped:
        """Stands for a model of peft, which passes attributes on."""

        def __init__(self, model: ElmoModel) -> None:
            self.model = model
            self.base_model = self

        def __getattr__(self, name: str) -> Any:
            return getattr(self.model, name)

    wrapped: Any = Wrapped(tiny_model.bfloat16())
    with pytest.raises(ValueError, match="Expected an ElmoModel for backend onnx, got Wrapped"):
        list(embed_layers([["bank"]], wrapped, tokenizer, backend="onnx"))
    (layers,) = embed_layers([["bank"]], wrapped, tokenizer)
    assert layers.dtype == torch.bfloat16

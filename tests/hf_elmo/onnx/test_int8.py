"""Weights of 8 bits, or of 7 where 8-bit products saturate."""

import pytest
import torch

from hf_elmo import ElmoModel
from hf_elmo.onnx import OrtElmoModel
from hf_elmo.onnx.int8 import has_exact_int8


@pytest.mark.parametrize(("value", "is_exact"), [("exact", True), ("saturating", False)])
def test_the_answer_on_8_bit_products_can_be_overridden(
    value: str, is_exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ELMO_INT8", value)
    assert has_exact_int8.__wrapped__() is is_exact


def test_weights_have_7_bits_where_8_bit_products_saturate(
    tiny_model: ElmoModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, sizes = torch.randn(3, tiny_model.config.projection_size), [1, 1, 1]
    monkeypatch.setattr("hf_elmo.onnx.int8.has_exact_int8", lambda: False)
    layers, _ = OrtElmoModel.from_model(tiny_model, quantization="int8").run_bilm(packed, sizes)
    monkeypatch.setattr("hf_elmo.onnx.int8.has_exact_int8", lambda: True)
    expected, _ = OrtElmoModel.from_model(tiny_model, quantization="int7").run_bilm(packed, sizes)
    assert all(map(torch.equal, layers, expected))
    exact, _ = OrtElmoModel.from_model(tiny_model, quantization="int8").run_bilm(packed, sizes)
    assert not torch.equal(layers[-1], exact[-1])


def test_a_misspelt_override_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ELMO_INT8", "Exact")
    has_exact_int8.cache_clear()
    with pytest.raises(ValueError, match="Expected HF_ELMO_INT8 exact or saturating, got 'Exact'"):
        has_exact_int8()

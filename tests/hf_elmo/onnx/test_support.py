"""Models that ONNX Runtime cannot compute are named."""

import pytest
import torch

from hf_elmo import ElmoModel
from hf_elmo.onnx import OrtElmoModel
from hf_elmo.onnx.support import find_problem, has_exact_int8


def test_a_model_as_it_was_loaded_has_no_problem(tiny_model: ElmoModel) -> None:
    assert find_problem(tiny_model) is None


def test_a_model_in_half_precision_has_no_problem(tiny_model: ElmoModel) -> None:
    assert find_problem(tiny_model.half()) is None


def test_a_model_in_double_precision_can_be_rounded_to_8_bits(tiny_model: ElmoModel) -> None:
    tiny_model.double()
    assert "in torch.float64" in str(find_problem(tiny_model))
    assert find_problem(tiny_model, "int8") is None


def test_autocast_is_a_problem(tiny_model: ElmoModel) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert find_problem(tiny_model) == "one under autocast"


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
    monkeypatch.setattr("hf_elmo.onnx.ort_model.has_exact_int8", lambda: False)
    layers, _ = OrtElmoModel.from_model(tiny_model, quantization="int8").run_bilm(packed, sizes)
    monkeypatch.setattr("hf_elmo.onnx.ort_model.has_exact_int8", lambda: True)
    expected, _ = OrtElmoModel.from_model(tiny_model, quantization="int7").run_bilm(packed, sizes)
    assert all(map(torch.equal, layers, expected))
    exact, _ = OrtElmoModel.from_model(tiny_model, quantization="int8").run_bilm(packed, sizes)
    assert not torch.equal(layers[-1], exact[-1])

"""Models that ONNX Runtime cannot compute are named."""

import torch

from hf_elmo import ElmoModel
from hf_elmo.onnx.support import find_problem


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

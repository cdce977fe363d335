"""ESIM."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close

PAPER = {"static_vocab_size": 5, "static_size": 300}


def count(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def test_the_paper_s_preset_has_its_shapes(make_case: Callable[..., Any]) -> None:
    model = make_case("entailment", "paper", elmo_at="none", **PAPER).model
    assert count(model.encoder) == 2 * 4 * 300 * (300 + 300 + 2)
    assert model.comparison.weight.shape == (300, 2400)
    assert count(model.composition) == 2 * 4 * 300 * (300 + 300 + 2)
    assert model.pooled.weight.shape == (300, 2400)


def test_elmo_at_the_output_widens_the_inference(make_case: Callable[..., Any]) -> None:
    model = make_case("entailment", "paper", **PAPER).model
    assert model.config.elmo_at == "both"
    width = model.config.bilm.hidden_size
    assert model.comparison.weight.shape == (300, 4 * (600 + width))


def test_each_word_attends_to_the_other_sentence(make_case: Callable[..., Any]) -> None:
    case = make_case("entailment")
    batch = case.make_batch([0, 1])
    swapped = {name: x.flip(1) if x.dim() > 2 else x for name, x in batch.items()}
    halves = case.model.pooled.weight
    with torch.no_grad():  # a classifier to which both sentences are the same
        half = halves.shape[1] // 2
        halves[:, half:] = halves[:, :half]
    assert_close(case.model(**swapped).logits, case.model(**batch).logits)


@pytest.mark.parametrize("name", ["encoder", "composition"])
def test_forget_gates_start_open(name: str, make_case: Callable[..., Any]) -> None:
    layers = getattr(make_case("entailment").model, name)
    for suffix in ("", "_reverse"):
        biases = [getattr(layers, f"bias_{part}_l0{suffix}") for part in ("ih", "hh")]
        assert sum(biases).tolist() == [0.0] * 6 + [1.0] * 6 + [0.0] * 12


def test_recurrent_matrices_start_orthogonal(make_case: Callable[..., Any]) -> None:
    weight = make_case("entailment").model.encoder.weight_hh_l0
    assert_close(weight.T @ weight, torch.eye(6))

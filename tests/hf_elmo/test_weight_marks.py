"""Marks of weights: every change of a whole weight is seen, and no other."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hf_elmo.weight_marks import mark_weights


def make_weights() -> list[nn.Parameter]:
    torch.manual_seed(0)
    shapes = [(512, 128), (512,), (3,)]
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


@torch.no_grad()
def write_in_place(weights: list[nn.Parameter]) -> None:
    weights[0][5, 7] += 1


def replace(weights: list[nn.Parameter]) -> None:
    weights[1] = nn.Parameter(weights[1].detach().clone())


def write_through_data(weights: list[nn.Parameter]) -> None:
    weights[0].data.mul_(0.999)


def copy_into_data(weights: list[nn.Parameter]) -> None:
    weights[1].data.copy_(torch.randn(512))


def write_one_of_few_numbers_through_data(weights: list[nn.Parameter]) -> None:
    weights[2].data[1] += 1


@pytest.mark.parametrize(
    "change",
    [
        write_in_place,
        replace,
        write_through_data,
        copy_into_data,
        write_one_of_few_numbers_through_data,
    ],
)
def test_a_change_changes_the_mark(change: Callable[[list[nn.Parameter]], None]) -> None:
    weights = make_weights()
    before = mark_weights(weights)
    assert mark_weights(weights) == before
    change(weights)
    assert mark_weights(weights) != before


@pytest.mark.parametrize(
    "weight",
    [
        torch.ones(70, 3).t(),
        torch.ones(100, dtype=torch.bfloat16),
        torch.ones(100, dtype=torch.int8),
    ],
    ids=["transposed", "bfloat16", "int8"],
)
def test_weights_of_every_kind_have_a_mark(weight: Tensor) -> None:
    others = torch.ones(2), torch.ones(5, 0)
    before = mark_weights([weight, *others])
    assert mark_weights([weight, *others]) == before
    weight.data.mul_(2)
    assert mark_weights([weight, *others]) != before


def test_weights_made_in_inference_mode_have_a_mark() -> None:
    with torch.inference_mode():
        weight = torch.ones(100)
        before = mark_weights([weight])
        weight.mul_(2)
    assert mark_weights([weight]) != before


def test_weights_without_numbers_are_told_apart_by_address_and_writes() -> None:
    weight = torch.ones(100, device="meta")
    before = mark_weights([weight])
    weight.mul_(2)
    assert mark_weights([weight]) != before

"""What NumPy computes equals what PyTorch computes, and PyTorch does what NumPy cannot."""

import pytest
import torch
from torch import Tensor

from hf_elmo.array_operations import are_finite, join, make_zeros, stack, sum_weighted, take

ROWS = torch.tensor([2, 0, 0])


def make_tensor(kind: str) -> Tensor:
    x = torch.arange(24.0).view(3, 4, 2).transpose(0, 1)  # (4, 3, 2), not contiguous
    if kind == "with gradients":
        return x.clone().requires_grad_()
    if kind == "inference":
        with torch.inference_mode():
            return x.clone()
    return x.to(getattr(torch, kind))


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "with gradients", "inference"])
def test_tensors_are_selected_joined_and_stacked(kind: str) -> None:
    x = make_tensor(kind)
    for dim in (0, -2):
        assert torch.equal(take(x, ROWS, dim), x.index_select(dim, ROWS))
        assert torch.equal(join([x, x], dim), torch.cat([x, x], dim))
    assert torch.equal(stack([x, x]), torch.stack([x, x]))
    assert join([x], 0) is x
    assert all(result.requires_grad == x.requires_grad for result in (take(x, ROWS), stack([x])))


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "with gradients"])
def test_a_weighted_sum_is_that_of_pytorch(kind: str) -> None:
    x = make_tensor(kind)
    weights = torch.tensor([0.5, 2.0, 0.0, -1.0], dtype=x.dtype)
    total = sum_weighted(weights, x)
    assert torch.allclose(total, torch.tensordot(weights, x, dims=1), rtol=1e-6)
    assert total.requires_grad == x.requires_grad


@pytest.mark.parametrize("kind", ["float64", "bfloat16"])
def test_zeros_have_the_dtype_of_another_tensor(kind: str) -> None:
    zeros = make_zeros((2, 3), make_tensor(kind))
    assert torch.equal(zeros, torch.zeros(2, 3, dtype=getattr(torch, kind)))


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_one_value_that_is_not_finite_is_found(kind: str, value: float) -> None:
    x = make_tensor(kind)
    assert are_finite(x)
    x[1, 1, 1] = value
    assert not are_finite(x)

"""The GRU's own loop against torch's."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from hf_elmo.tasks.layers.gru import run_gru

NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def make_layers(directions: int) -> list[nn.GRU]:
    torch.manual_seed(0)
    return [nn.GRU(4, 3, batch_first=True).double() for _ in range(directions)]


def stack_weights(layers: list[nn.GRU]) -> list[Tensor]:
    return [torch.stack([getattr(layer, name) for layer in layers]) for name in NAMES]


@pytest.mark.parametrize("directions", [1, 2])
def test_each_direction_is_that_of_torch(directions: int) -> None:
    layers = make_layers(directions)
    x = torch.randn(directions, 2, 5, 4, dtype=torch.float64)
    got = run_gru(x, *stack_weights(layers))
    assert_close(got, torch.stack([layer(y)[0] for layer, y in zip(layers, x, strict=True)]))


def test_gradients_are_right() -> None:
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    inputs = [tensor.detach().requires_grad_() for tensor in (x, *stack_weights(make_layers(2)))]
    assert torch.autograd.gradcheck(run_gru, inputs)


def test_mixed_precision_trains_in_single_precision() -> None:
    layers = [layer.float() for layer in make_layers(1)]
    x = torch.randn(1, 2, 5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        got = run_gru(x, *stack_weights(layers))
    assert got.dtype == torch.float32
    got.sum().backward()
    assert_close(got[0], layers[0](x[0])[0], rtol=0, atol=0.02)

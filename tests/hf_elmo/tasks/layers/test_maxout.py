"""Maxout against the maximum of linear layers."""

import torch
from torch.testing import assert_close

from hf_elmo.tasks.layers.maxout import Maxout


def test_each_number_is_the_largest_of_its_pieces() -> None:
    torch.manual_seed(0)
    layer = Maxout(4, 3, 2)
    x = torch.randn(5, 4)
    weight, bias = layer.linear.weight, layer.linear.bias
    for k in range(3):
        pieces = [x @ weight[2 * k + j] + bias[2 * k + j] for j in range(2)]
        assert_close(layer(x)[:, k], torch.maximum(*pieces))

"""Pooling over words against each sentence on its own."""

import torch
from torch.testing import assert_close

from hf_elmo.tasks.layers.pooling import pool_max, pool_mean

LENGTHS = [3, 0, 4]


def test_padding_is_not_pooled() -> None:
    x = torch.randn(3, 5, 2, dtype=torch.float64) - 3
    mask = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    for row, length in enumerate(LENGTHS):
        words = x[row, :length] if length else torch.zeros(1, 2).double()
        assert_close(pool_mean(x, mask)[row], words.mean(dim=0))
        assert_close(pool_max(x, mask)[row], words.max(dim=0).values)


def test_a_batch_without_tokens_pools_to_zeros() -> None:
    x, mask = torch.zeros(2, 0, 3), torch.zeros(2, 0, dtype=torch.bool)
    assert not pool_max(x, mask).any()
    assert not pool_mean(x, mask).any()

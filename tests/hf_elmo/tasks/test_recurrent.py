"""Packed runs of torch's recurrent layers against each sentence on its own."""

import torch
from torch import nn
from torch.testing import assert_close

from hf_elmo.tasks.recurrent import run_packed

LENGTHS = [3, 5, 0, 1]


def test_each_sentence_is_as_if_it_stood_alone() -> None:
    torch.manual_seed(0)
    for kind in (nn.LSTM, nn.GRU):
        layers = kind(4, 3, num_layers=2, batch_first=True, bidirectional=True).double()
        x = torch.randn(4, 7, 4, dtype=torch.float64)
        mask = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
        got = run_packed(layers, x, mask)
        assert got.shape == (4, 7, 6)
        assert not got[~mask].any()
        for row, length in enumerate(LENGTHS):
            if length:
                assert_close(got[row, :length], layers(x[row : row + 1, :length])[0][0])


def test_a_batch_without_tokens_has_none() -> None:
    layers = nn.GRU(4, 3, batch_first=True)
    assert run_packed(layers, torch.zeros(2, 0, 4), torch.zeros(2, 0).bool()).shape == (2, 0, 3)

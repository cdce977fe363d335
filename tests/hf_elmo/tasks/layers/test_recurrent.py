"""Runs of torch's recurrent layers against each sentence on its own."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hf_elmo.tasks.layers.recurrent import VariationalDropout, run_sentences


@pytest.mark.parametrize("lengths", [[3, 5, 0, 1], [7, 6, 0, 7, 5]])  # much padding, and little
def test_each_sentence_is_as_if_it_stood_alone(lengths: list[int]) -> None:
    torch.manual_seed(0)
    for kind in (nn.LSTM, nn.GRU):
        layers = kind(4, 3, num_layers=2, batch_first=True, bidirectional=True).double()
        x = torch.randn(len(lengths), 7, 4, dtype=torch.float64)
        mask = torch.arange(7) < torch.tensor(lengths)[:, None]
        got = run_sentences(layers, x, mask)
        assert got.shape == (len(lengths), 7, 6)
        assert not got[~mask].any()
        for row, length in enumerate(lengths):
            if length:
                assert_close(got[row, :length], layers(x[row : row + 1, :length])[0][0])


def test_a_batch_without_tokens_has_none() -> None:
    layers = nn.GRU(4, 3, batch_first=True)
    assert run_sentences(layers, torch.zeros(2, 0, 4), torch.zeros(2, 0).bool()).shape == (2, 0, 3)


def test_layers_drop_out_between_them_in_training_alone() -> None:
    torch.manual_seed(0)
    layers = nn.LSTM(4, 3, num_layers=2, batch_first=True, dropout=0.5)
    x, mask = torch.randn(2, 5, 4), torch.ones(2, 5, dtype=torch.bool)
    assert not run_sentences(layers, x, mask).equal(run_sentences(layers, x, mask))
    layers.eval()
    assert_close(run_sentences(layers, x, mask), layers(x)[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_gradients_are_those_of_sentences_on_their_own(kind: type[nn.LSTM]) -> None:
    torch.manual_seed(0)
    lengths = [7, 6, 5]
    layers = kind(4, 3, batch_first=True, bidirectional=True).double()
    x = torch.randn(3, 7, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    weights = [x, *layers.parameters()]
    factors = torch.randn(3, 7, 6, dtype=torch.float64)
    got = torch.autograd.grad((run_sentences(layers, x, mask) * factors).sum(), weights)
    alone = [
        (layers(x[row : row + 1, :length])[0][0] * factors[row, :length]).sum()
        for row, length in enumerate(lengths)
    ]
    for gradient, expected in zip(got, torch.autograd.grad(sum(alone), weights), strict=True):
        assert_close(gradient, expected)


def test_all_words_of_a_sentence_lose_the_same_numbers() -> None:
    torch.manual_seed(0)
    x = torch.rand(3, 4, 50) + 1
    kept = VariationalDropout(0.4)(x) != 0
    assert (kept == kept[:, :1]).all()
    assert (kept[0] != kept[1]).any()


def test_what_stays_is_scaled_up() -> None:
    torch.manual_seed(0)
    x = torch.rand(3, 4, 50) + 1
    y = VariationalDropout(0.4)(x)
    assert_close(y[y != 0], x[y != 0] / 0.6)
    assert_close(float((y != 0).float().mean()), 0.6, atol=0.1, rtol=0.0)


def test_nothing_is_dropped_in_evaluation() -> None:
    x = torch.rand(3, 4, 5)
    assert_close(VariationalDropout(0.4).eval()(x), x)

"""Dropout with one mask a sentence."""

import torch
from torch.testing import assert_close

from hf_elmo.tasks.layers.dropout import VariationalDropout


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

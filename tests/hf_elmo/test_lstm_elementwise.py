"""Elementwise work of a time step."""

import pytest
import torch
from torch.testing import assert_close

from hf_elmo import lstm_elementwise


@pytest.mark.parametrize("number", [100, 100_000])
def test_tanh_is_exact_for_few_and_many_numbers(number: int) -> None:
    torch.manual_seed(0)
    x = torch.cat([torch.randn(number), torch.tensor([0.0, 1e-30, -1e-3, 50, -50, 1e4, -1e4])])
    with torch.inference_mode():
        actual = lstm_elementwise.tanh(x)
    assert_close(actual, x.double().tanh(), rtol=3e-7, atol=0, check_dtype=False)

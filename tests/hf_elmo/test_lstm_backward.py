"""Parts of the backward pass; whole gradients are tested in test_lstm.py."""

import torch
from torch.testing import assert_close

from hf_elmo import ElmoConfig
from hf_elmo.lstm_backward import states_before
from hf_elmo.lstm_forward import LayerRun

SIZES = [2, 1]  # the first sentence has two words, the second one


def test_a_step_starts_from_the_state_before_it_or_from_the_initial_state() -> None:
    states = [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]])]
    initial = torch.tensor([[10.0], [20.0]])
    forward = states_before(states, initial, LayerRun(ElmoConfig(), SIZES, False, torch.float32))
    assert_close(forward, [initial, torch.tensor([[1.0]])])
    backward = states_before(states, initial, LayerRun(ElmoConfig(), SIZES, True, torch.float32))
    assert_close(backward, [torch.tensor([[3.0], [20.0]]), torch.tensor([[10.0]])])

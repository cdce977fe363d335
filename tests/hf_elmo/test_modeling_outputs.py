"""What the models return."""

import copy

import torch
from batches import SENTENCES, make_batch
from torch.testing import assert_close

from hf_elmo import (
    ElmoModel,
)


def test_state_is_no_key_of_an_output(tiny_model: ElmoModel) -> None:
    with torch.no_grad():
        out = tiny_model(*make_batch(tiny_model.config, SENTENCES))
    assert out.state.forward[0].shape == (2, 5, 8)
    assert list(out) == ["last_hidden_state", "elmo", "attention_mask"]
    assert all(isinstance(value, torch.Tensor) for value in out.to_tuple())
    copied = copy.deepcopy(out)  # as pickling does, by what the class says of itself
    assert_close(copied.state, out.state)
    assert list(copied) == list(out)

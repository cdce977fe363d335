"""What the models return."""

import copy

import pytest
import torch
from accelerate import cpu_offload
from accelerate.utils import convert_outputs_to_fp32
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


def test_an_offloaded_model_returns_its_state(tiny_model: ElmoModel) -> None:
    batch = make_batch(tiny_model.config, SENTENCES)
    offloaded = cpu_offload(copy.deepcopy(tiny_model), execution_device=torch.device("cpu"))
    with torch.no_grad():
        expected = tiny_model(*batch, state=tiny_model(*batch).state)
        assert_close(offloaded(*batch, state=offloaded(*batch).state).elmo, expected.elmo)


def test_an_output_moves_to_a_device_with_its_state(tiny_model: ElmoModel) -> None:
    moved = tiny_model(*make_batch(tiny_model.config, SENTENCES)).to("meta")
    parts = [moved.elmo, *moved.state.forward, *moved.state.backward]
    assert {part.device.type for part in parts} == {"meta"}


def test_a_state_that_another_program_lost_is_refused(tiny_model: ElmoModel) -> None:
    batch = make_batch(tiny_model.config, SENTENCES)
    rebuilt = convert_outputs_to_fp32(tiny_model.forward)(*batch)
    with pytest.raises(ValueError, match=r"LostState.*call the model before"):
        tiny_model(*batch, state=rebuilt.state)

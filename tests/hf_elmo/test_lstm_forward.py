"""Parts of the forward pass; the whole is tested in test_lstm.py."""

import pytest
import torch

from hf_elmo import ElmoConfig
from hf_elmo.lstm_forward import LayerRun


@pytest.mark.parametrize(
    ("reverse", "chunks"), [(False, [[0], [1, 2, 3]]), (True, [[3, 2, 1], [0]])]
)
def test_chunks_bound_the_rows_of_the_time_steps(reverse: bool, chunks: list[list[int]]) -> None:
    run = LayerRun(ElmoConfig(), [100, 60, 60, 3], reverse, torch.float32)
    assert [list(times) for times in run.chunks()] == chunks

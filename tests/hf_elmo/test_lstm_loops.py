"""The loops over time steps: activations, threads by direction."""

import threading
from collections.abc import Iterator

import pytest
import torch
from torch.testing import assert_close

from hf_elmo import ElmoConfig, lstm_loops
from hf_elmo.lstm_loops import LayerRun, run_directions


@pytest.fixture
def two_threads() -> Iterator[None]:
    """PyTorch's two threads, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("number", [100, 100_000])
def test_tanh_is_exact_for_few_and_many_numbers(number: int) -> None:
    torch.manual_seed(0)
    x = torch.cat([torch.randn(number), torch.tensor([0.0, 1e-30, -1e-3, 50, -50, 1e4, -1e4])])
    with torch.inference_mode():
        actual = lstm_loops.tanh(x)
    assert_close(actual, x.double().tanh(), rtol=3e-7, atol=0, check_dtype=False)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("rows", "dtype", "in_threads"),
    [
        (32, torch.float32, True),
        (31, torch.float32, False),
        (96, torch.bfloat16, True),
        (95, torch.bfloat16, False),
    ],
)
def test_only_long_steps_run_in_a_thread_for_each_direction(
    rows: int, dtype: torch.dtype, in_threads: bool
) -> None:
    config = ElmoConfig(projection_size=128, cell_size=1024)
    runs = [LayerRun(config, [rows], reverse, dtype) for reverse in (False, True)]
    threads = run_directions(lambda _: threading.get_ident(), runs, "cpu")
    assert (threading.get_ident() not in threads) == in_threads


@pytest.mark.usefixtures("two_threads")
def test_a_thread_for_a_direction_has_its_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lstm_loops, "LONG_STEP", 0)

    def work(_: int) -> int:
        torch.ones(2**17).sigmoid()  # large enough to be divided
        return torch.get_num_threads()

    runs = [LayerRun(ElmoConfig(), [3, 2, 1], reverse, torch.float32) for reverse in (False, True)]
    assert run_directions(work, runs, "cpu") == [1, 1]

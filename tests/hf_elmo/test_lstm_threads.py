"""The loops over time steps: activations, threads by direction."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
import torch

from hf_elmo import ElmoConfig, lstm_forward
from hf_elmo.lstm_forward import LayerRun
from hf_elmo.lstm_threads import run_directions, start_threads


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
    monkeypatch.setattr(lstm_forward, "LONG_STEP", 0)

    def work(_: int) -> int:
        torch.ones(2**17).sigmoid()  # large enough to be divided
        return torch.get_num_threads()

    runs = [LayerRun(ElmoConfig(), [3, 2, 1], reverse, torch.float32) for reverse in (False, True)]
    assert run_directions(work, runs, "cpu") == [1, 1]


def call_in_new_thread(function: Callable[[], Any]) -> Any:
    """Call a function in a thread of its own, and wait for it for half a minute at most."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except (AssertionError, RuntimeError) as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(30)


@pytest.fixture
def new_pool() -> Iterator[None]:
    """No threads kept from before, nor for later."""
    start_threads.cache_clear()
    yield
    start_threads.cache_clear()


RUNS = [LayerRun(ElmoConfig(), [32] * 3, reverse, torch.float32) for reverse in (False, True)]


@pytest.mark.usefixtures("two_threads", "new_pool")
@pytest.mark.parametrize("failing", [{"_0"}, {"_1"}, {"_0", "_1"}])
def test_a_thread_that_cannot_be_set_up_is_an_error_and_leaves_all_as_it_was(
    failing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_in_some(count: int) -> None:
        name = threading.current_thread().name
        if name.startswith("elmo-direction") and name[-2:] in failing:
            raise RuntimeError("no threads")
        set_num_threads(count)

    def run() -> tuple[str, int]:
        with pytest.raises(RuntimeError) as error:
            run_directions(lambda index: index, RUNS, "cpu")
        return str(error.value), torch.get_num_threads()

    set_num_threads, before = torch.set_num_threads, set(threading.enumerate())
    monkeypatch.setattr(torch, "set_num_threads", fail_in_some)
    assert call_in_new_thread(run) == ("no threads", 2)
    assert call_in_new_thread(torch.get_num_threads) == 2
    new = set(threading.enumerate()) - before
    assert not [thread for thread in new if thread.name.startswith("elmo-direction")]


@pytest.mark.usefixtures("two_threads", "new_pool")
def test_new_threads_begin_with_the_count_that_they_began_with_before() -> None:
    def run_with_a_count_of_its_own() -> int:
        torch.get_num_threads()  # or the next operation would set it anew
        torch.set_num_threads(4)
        call_in_new_thread(partial(torch.set_num_threads, 2))  # what new threads begin with
        assert run_directions(lambda _: torch.get_num_threads(), RUNS, "cpu") == [2, 2]
        return torch.get_num_threads()

    assert call_in_new_thread(run_with_a_count_of_its_own) == 4
    assert call_in_new_thread(torch.get_num_threads) == 2
    assert torch.get_num_threads() == 2

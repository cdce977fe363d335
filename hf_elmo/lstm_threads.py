"""One thread for each direction of an LSTM layer."""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import torch

from .lstm_forward import LayerRun

START_LOCK = threading.Lock()  # held while threads start: PyTorch's thread count differs meanwhile


@functools.lru_cache(maxsize=1)
def start_threads(process: int, number: int, threads: int) -> ThreadPoolExecutor:
    """Start one thread for each direction; each gets `threads // number` of PyTorch's threads.

    The started threads are kept for the next call, and made again after a fork (a new `process`),
    which does not copy threads. PyTorch's count for other and for new threads stays as before.
    """
    together = threading.Barrier(number)

    def set_up() -> None:
        torch.get_num_threads()  # or the first operation would set it again
        together.wait()  # so that each thread comes here once
        torch.set_num_threads(max(1, threads // number))  # also what new threads begin with

    with START_LOCK, ThreadPoolExecutor(1) as new_thread:
        count = new_thread.submit(torch.get_num_threads).result()
        pool = ThreadPoolExecutor(number, "elmo-direction")
        try:
            futures = [pool.submit(set_up) for _ in range(number)]
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        except BaseException:
            together.abort()  # releases the threads that wait for one that failed
            pool.shutdown()
            raise
        finally:
            new_thread.submit(torch.set_num_threads, count).result()
    return pool


def run_directions(
    function: Callable[[int], Any], runs: Sequence[LayerRun], device: str
) -> list[Any]:
    """Call `function(index)` for each run, without autograd; in one thread per run if faster.

    Threads that each run one direction need not wait for each other at every operation, as
    PyTorch's threads must, and small operations, which PyTorch does not divide, run side by side.
    """

    def call(index: int) -> Any:
        autocast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if torch.amp.is_autocast_available(device):
            autocast = torch.autocast(device, enabled=False)
        with torch.no_grad(), autocast:  # in this thread: it has settings of its own
            return function(index)

    threads, number = torch.get_num_threads(), len(runs)
    if number == 1 or threads == 1 or device != "cpu" or not runs[0].has_long_steps:
        return [call(index) for index in range(number)]
    return list(start_threads(os.getpid(), number, threads).map(call, range(number)))

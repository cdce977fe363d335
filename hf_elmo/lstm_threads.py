"""One thread for each direction of an LSTM layer."""

import contextlib
import functools
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import torch

from .lstm_forward import LayerRun

# By process: held while a start of threads changes PyTorch's thread count.
START_LOCKS: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)


@functools.lru_cache(maxsize=1)
def start_threads(process: int, number: int, threads: int) -> ThreadPoolExecutor:
    """Start one thread for each direction; each gets `threads // number` of PyTorch's threads.

    The started threads are cached for the next call. After a fork (a new `process`), new threads
    are started, since a fork copies no threads. PyTorch's count for all other threads is unchanged.
    """
    together = threading.Barrier(number)

    def set_up() -> None:
        torch.get_num_threads()  # else the first operation would reset the count
        together.wait()  # so that each thread runs this function once
        torch.set_num_threads(max(1, threads // number))  # also sets the count of new threads

    with START_LOCKS[process], ThreadPoolExecutor(1) as new_thread:
        count = new_thread.submit(torch.get_num_threads).result()
        pool = ThreadPoolExecutor(number, "elmo-direction")
        try:
            futures = [pool.submit(set_up) for _ in range(number)]
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        except BaseException:
            together.abort()  # releases the threads that wait for a failed thread
            pool.shutdown()
            raise
        finally:
            new_thread.submit(torch.set_num_threads, count).result()
    return pool


def run_directions(
    function: Callable[[int], Any], runs: Sequence[LayerRun], device: str
) -> list[Any]:
    """Call `function(index)` for each run, without autograd; in one thread per run if faster.

    PyTorch's own threads wait for each other at every operation; the directions' threads do not.
    Small operations, which PyTorch does not divide among its threads, also run in parallel.
    """

    def call(index: int) -> Any:
        autocast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if torch.amp.is_autocast_available(device):
            autocast = torch.autocast(device, enabled=False)
        with torch.no_grad(), autocast:  # each thread has its own settings
            return function(index)

    threads, number = torch.get_num_threads(), len(runs)
    if number == 1 or threads == 1 or device != "cpu" or not runs[0].has_long_steps:
        return [call(index) for index in range(number)]
    return list(start_threads(os.getpid(), number, threads).map(call, range(number)))

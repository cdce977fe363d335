"""Who computes the parts of an output: processes of this machine, or Ray's on many."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from .arrow import Array, import_pyarrow, iterate_vectors
from .embedding import Piece
from .output_parts import find_parts
from .rows import Row, Rows, cut_blocks
from .sentence_embedder import SentenceEmbedder

WAITING_BLOCKS = 2  # of a worker: one that it computes, one that waits
RAY_BLOCK_BYTES = 2**17  # of text or vectors in one object of Ray: some 20,000 words of text


def embed_in_processes(
    blocks: Iterable[list[Row]], embedder: SentenceEmbedder, num_workers: int
) -> Iterator[Iterator[Piece]]:
    """Compute the vectors of blocks of rows in processes of this machine.

    Args:
        blocks: The rows.
        embedder: What computes them.
        num_workers: How many processes.

    Returns:
        An iterator of the pieces of each block, in their order.

    Raises:
        OSError: If a process dies.
    """
    pool = ProcessPoolExecutor(num_workers, get_context("spawn"), initializer=_follow_parent)
    waiting: deque[tuple[list[Row], Future[list[Array]]]] = deque()
    try:
        for block in blocks:
            waiting.append((block, pool.submit(embedder.embed, [row.words for row in block])))
            if len(waiting) == WAITING_BLOCKS * num_workers:
                first, vectors = waiting.popleft()
                yield _make_pieces(first, vectors.result())
        for first, vectors in waiting:
            yield _make_pieces(first, vectors.result())
    except BrokenProcessPool as error:
        raise OSError(
            "A worker died, as when memory runs out. What is complete is kept: run the same again, "
            "with fewer workers perhaps."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """End this process when its parent is no more: killed, that one can tell nobody."""

    def wait() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _make_pieces(block: list[Row], arrays: Iterable[Array]) -> Iterator[Piece]:
    for number, (row, vectors) in enumerate(zip(block, arrays, strict=True)):
        yield Piece(number, 0, len(row.words), torch.from_numpy(vectors))


def embed_in_ray(
    blocks: Iterable[list[Row]],
    embedder: SentenceEmbedder,
    rows: Rows,
    folder: Path,
    *,
    num_workers: int = 1,
    cpus_per_worker: int = 1,
    address: str | None = None,
) -> Iterator[Iterator[Piece]]:
    """Compute the vectors of blocks of rows by Ray Data, with a pool of actors.

    A task on this machine reads the rows once more and hands them out; the vectors come back here,
    in order. An actor that dies is replaced, and its work done again.

    Args:
        blocks: The rows that are wanted.
        embedder: What computes them; its model must be found on every machine.
        rows: All rows.
        folder: Where the parts are that need no rows.
        num_workers: How many actors.
        cpus_per_worker: Cores of each.
        address: Of a Ray cluster, or `"auto"`; None = one on this machine, for the while.

    Returns:
        An iterator of the pieces of each block, in their order.

    Raises:
        ImportError: If Ray is not installed.
        OSError: If Ray gives up.
    """
    ray = _start_ray(address, num_workers * cpus_per_worker)
    try:
        source = _make_source(ray, partial(_read_tables, rows, find_parts(folder)))
        dataset = source.map_batches(
            SentenceEmbedder,
            fn_constructor_kwargs=asdict(embedder),
            batch_size=None,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=num_workers),
            num_cpus=cpus_per_worker,
            num_gpus=1 if (embedder.device or "").startswith("cuda") else None,
        )
        vectors = _iterate_rows(dataset, embedder)
        for block in blocks:
            yield _make_pieces(block, map(_check_number, block, vectors))
    except ray.exceptions.RayError as error:
        raise OSError(
            f"Ray gave up: {error}. What is complete is kept: run the same again."
        ) from error
    finally:
        ray.shutdown()


def _start_ray(address: str | None, num_cpus: int) -> ModuleType:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(
            "The engine ray needs the package ray: pip install 'spacy-elmo[scale]'."
        ) from error
    own: dict[str, Any] = (
        {"num_cpus": num_cpus, "include_dashboard": False} if address is None else {}
    )
    ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # there is one
    context.execution_options.preserve_order = True
    context.target_max_block_size = RAY_BLOCK_BYTES  # smaller ones are put together
    return ray


def _make_source(ray: ModuleType, read: Callable[[], Iterator[Any]]) -> Any:
    """Make a dataset of one task that reads, on this machine; it needs no core of its own."""
    from ray.data.block import BlockMetadata

    class Source(ray.data.Datasource):  # type: ignore[misc,name-defined]  # imported only here
        def estimate_inmemory_data_size(self) -> None: ...

        def get_read_tasks(self, *args: Any, **kwargs: Any) -> list[Any]:
            return [ray.data.ReadTask(read, BlockMetadata(None, None, None, None))]

    here = ray.get_runtime_context().get_node_id()
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
    return ray.data.read_datasource(
        Source(),
        num_cpus=0,
        ray_remote_args={"scheduling_strategy": strategy},
        override_num_blocks=1,
    )


def _read_tables(rows: Rows, done: set[int]) -> Iterator[Any]:
    """Read the blocks of rows that are not done."""
    for number, block in enumerate(cut_blocks(rows)):
        if number not in done:
            columns = {"number": [r.number for r in block], "text": [r.words for r in block]}
            yield import_pyarrow().table(columns)


def _iterate_rows(dataset: Any, embedder: SentenceEmbedder) -> Iterator[tuple[int, Array]]:
    for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        vectors = iterate_vectors(table[embedder.vectors_column])
        yield from zip(table["number"].to_pylist(), vectors, strict=True)


def _check_number(row: Row, result: tuple[int, Array]) -> Array:
    number, vectors = result
    if number != row.number:
        raise OSError(f"Expected sentence {row.number} from Ray, got {number}.")
    return np.array(vectors)  # a copy, free of Ray's memory

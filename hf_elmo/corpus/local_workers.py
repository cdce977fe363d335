"""Compute vectors in several processes on this machine."""

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process

import torch

from hf_elmo.inference.embedding import Piece

from .arrow import Array
from .rows import Row
from .sentence_embedder import SentenceEmbedder

WAITING_BLOCKS = 2  # per worker: one in computation, one waiting


def embed_in_processes(
    blocks: Iterable[list[Row]], embedder: SentenceEmbedder, num_workers: int
) -> Iterator[Iterator[Piece]]:
    """Compute vectors in local processes; yield the pieces of each block of rows, in order.

    Args:
        blocks: Blocks of rows.
        embedder: Computes the vectors.
        num_workers: Number of processes.

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
                yield make_pieces(first, vectors.result())
        for first, vectors in waiting:
            yield make_pieces(first, vectors.result())
    except BrokenProcessPool as error:
        raise OSError(
            "A worker died, possibly because memory ran out. Complete parts are kept. Run the same "
            "command again, possibly with fewer workers."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """End this worker when its parent ends, because a killed parent cannot stop its workers."""

    def wait() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def make_pieces(block: list[Row], arrays: Iterable[Array]) -> Iterator[Piece]:
    """Make one `Piece` for each row from its vectors."""
    for number, (row, vectors) in enumerate(zip(block, arrays, strict=True)):
        # A copy, since arrays in Ray's memory are read-only.
        yield Piece(number, 0, len(row.words), torch.tensor(vectors))

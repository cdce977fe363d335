"""Execution backends: local processes, Ray."""

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from itertools import chain
from multiprocessing import get_context, parent_process
from types import ModuleType
from typing import Any

import torch

from hf_elmo.inference.embedding import Piece

from .arrow import Array
from .rows import Row
from .sentence_embedder import SentenceEmbedder

WAITING_BLOCKS = 2  # per worker: one in computation, one waiting
MAX_RETRIES = 5  # per block, if its worker dies


def embed_in_processes(
    blocks: Iterable[list[Row]], embedder: SentenceEmbedder, num_workers: int
) -> Iterator[Iterator[Piece]]:
    """Compute the vectors of blocks of rows in local processes; yield them in order.

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
                yield _make_pieces(first, vectors.result())
        for first, vectors in waiting:
            yield _make_pieces(first, vectors.result())
    except BrokenProcessPool as error:
        raise OSError(
            "A worker died, possibly because memory ran out. Complete parts are kept. Run the same "
            "command again, possibly with fewer workers."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """Exit when the parent process has ended, since a killed parent cannot stop its workers."""

    def wait() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _make_pieces(block: list[Row], arrays: Iterable[Array]) -> Iterator[Piece]:
    for number, (row, vectors) in enumerate(zip(block, arrays, strict=True)):
        # A copy, since arrays in Ray's memory are read-only.
        yield Piece(number, 0, len(row.words), torch.tensor(vectors))


def embed_in_ray(
    blocks: Iterable[list[Row]],
    embedder: SentenceEmbedder,
    *,
    num_workers: int = 1,
    cpus_per_worker: int = 1,
    address: str | None = None,
) -> Iterator[Iterator[Piece]]:
    """Compute the vectors of blocks of rows with Ray actors; yield them in order.

    Each block goes to the started actor with the least work. If an actor dies, it is restarted and
    computes its block again.

    Args:
        blocks: Blocks of rows.
        embedder: Computes the vectors; its model must be available on every machine.
        num_workers: Number of actors.
        cpus_per_worker: Cores per actor.
        address: Address of a Ray cluster, or `"auto"`; None = start a temporary local cluster.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: If the cluster has no resources for an actor, or the settings are wrong.
        OSError: If Ray fails.
    """
    blocks = iter(blocks)
    first = next(blocks, None)
    if first is None:
        return
    needs = {"CPU": cpus_per_worker, "GPU": int((embedder.device or "").startswith("cuda"))}
    ray = _start_ray(address, num_workers * cpus_per_worker)
    try:
        _check_room(ray.cluster_resources(), needs)
        make_actor = ray.remote(
            num_cpus=needs["CPU"],
            num_gpus=needs["GPU"],
            max_restarts=-1,
            max_task_retries=MAX_RETRIES,
        )(SentenceEmbedder).remote
        actors = [make_actor(**asdict(embedder)) for _ in range(num_workers)]
        starts = {actor.__ray_ready__.remote(): actor for actor in actors}
        # Rows, the reference to their vectors, the actor.
        waiting: deque[tuple[list[Row], Any, Any]] = deque()
        for block in chain([first], blocks):
            actor = _choose_actor(ray, starts, [work[1:] for work in waiting])
            waiting.append((block, actor.embed.remote([row.words for row in block]), actor))
            if len(waiting) == WAITING_BLOCKS * num_workers:
                first, vectors, _ = waiting.popleft()
                yield _make_pieces(first, ray.get(vectors))
        while waiting:  # popped, so that Ray can free the vectors
            first, vectors, _ = waiting.popleft()
            yield _make_pieces(first, ray.get(vectors))
    except ray.exceptions.RayTaskError as error:  # an error of the embedder
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise OSError(
            f"Ray failed: {error}. Complete parts are kept. Run the same command again."
        ) from error
    finally:
        ray.shutdown()


def _check_room(resources: dict[str, float], needs: dict[str, int]) -> None:
    """Refuse a cluster without the resources for an actor."""
    for name, number in needs.items():
        if resources.get(name, 0) < number:
            raise ValueError(
                f"Expected {number} {name} for a worker in the Ray cluster, found "
                f"{resources.get(name, 0):g} in all."
            )


def _choose_actor(ray: ModuleType, starts: dict[Any, Any], waiting: list[tuple[Any, Any]]) -> Any:
    """Return the actor with the least work; wait until one has started."""
    ray.wait(list(starts))
    look = {"timeout": 0, "fetch_local": False}
    started = ray.wait(list(starts), num_returns=len(starts), **look)[0]
    refs = [vectors for vectors, _ in waiting]
    busy = ray.wait(refs, num_returns=len(refs), **look)[1] if refs else []
    work = Counter(actor for vectors, actor in waiting if vectors in busy)
    return min((starts[start] for start in started), key=lambda actor: work[actor])


def _start_ray(address: str | None, num_cpus: int) -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise ImportError("The engine ray needs the package ray. Run pip install ray.") from error
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"num_cpus": num_cpus, "include_dashboard": False}
    ray.init(address or "local", **options)
    return ray

"""Compute vectors in Ray actors, on one machine or on a cluster."""

import logging
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from types import ModuleType
from typing import Any

from hf_elmo.inference.embedding import Piece

from .local_workers import WAITING_BLOCKS, make_pieces
from .rows import Row
from .sentence_embedder import SentenceEmbedder

MAX_RETRIES = 5  # per block, if its worker dies


def embed_in_ray(
    blocks: Iterable[list[Row]],
    embedder: SentenceEmbedder,
    *,
    num_workers: int = 1,
    cpus_per_worker: int = 1,
    address: str | None = None,
) -> Iterator[Iterator[Piece]]:
    """Compute vectors with Ray actors; yield the pieces of each block of rows, in order.

    Each block goes to the started actor with the fewest unfinished blocks. Ray restarts an actor
    that dies, and repeats its unfinished blocks.

    Args:
        blocks: Blocks of rows.
        embedder: Computes the vectors; its model must be available on every machine.
        num_workers: Number of actors.
        cpus_per_worker: Cores per actor.
        address: Address of a Ray cluster, or `"auto"`; None = start a temporary local cluster.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: If the cluster lacks the resources for an actor, or the settings are wrong.
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
        options = asdict(embedder) | ({"device": "cuda"} if needs["GPU"] else {})  # its only GPU
        actors = [make_actor(**options) for _ in range(num_workers)]
        starts = {actor.__ray_ready__.remote(): actor for actor in actors}
        # Rows, the reference to their vectors, the actor.
        waiting: deque[tuple[list[Row], Any, Any]] = deque()
        for block in chain([first], blocks):
            actor = _choose_actor(ray, starts, [work[1:] for work in waiting])
            waiting.append((block, actor.embed.remote([row.words for row in block]), actor))
            if len(waiting) == WAITING_BLOCKS * num_workers:
                first, vectors, _ = waiting.popleft()
                yield make_pieces(first, ray.get(vectors))
        while waiting:  # popped, so that Ray can free the vectors
            first, vectors, _ = waiting.popleft()
            yield make_pieces(first, ray.get(vectors))
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
    """Wait until an actor has started; return one with the fewest unfinished blocks."""
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
        # Older versions of Ray let everybody who reaches its ports run code.
        options["_node_ip_address"] = "127.0.0.1"
    ray.init(address or "local", **options)
    return ray

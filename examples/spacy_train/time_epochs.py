"""Time epochs without ELMo, with it, and without the cache of its layers: `python time_epochs.py`.

Each training has a process of its own with one thread. The time is that of the CPU, so that a busy
machine does not matter; the first epoch fills the cache.
"""

import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer
from compare import HERE, TASKS, VARIANTS
from spacy.training import Corpus
from spacy.training.initialize import init_nlp
from spacy.util import load_config, minibatch, registry
from tqdm import tqdm

NUM_DOCS = 1000
NUM_EPOCHS = 3
BATCH_SIZE = 32
KINDS = (("without", None), ("with", 2**30), ("with", 0))  # variant, and bytes of the cache


def time_epochs(task: str, corpus: Path, variant: str, cache_bytes: int | None) -> list[float]:
    """Give the CPU seconds of each epoch over the first docs."""
    train, dev = (str(corpus / task / f"{split}.spacy") for split in ("train", "dev"))
    path = HERE / "configs" / f"{TASKS[task].config}{VARIANTS[variant]}.cfg"
    config = load_config(path, overrides={"paths.train": train, "paths.dev": dev})
    if cache_bytes is not None:
        cache = {"@misc": "spacy_elmo.LayerCache.v1", "max_bytes": cache_bytes}
        config["initialize"] = {"components": {"elmo": {"cache": cache}}}
    nlp = init_nlp(config)
    optimizer = registry.resolve(nlp.config.interpolate()["training"])["optimizer"]
    examples = list(Corpus(train, limit=NUM_DOCS)(nlp))
    seconds = []
    for epoch in range(NUM_EPOCHS):
        random.Random(epoch).shuffle(examples)
        start = time.process_time()
        for batch in minibatch(examples, BATCH_SIZE):
            nlp.update(batch, drop=0.1, sgd=optimizer)
        seconds.append(time.process_time() - start)
    return seconds


def main(
    corpus: Annotated[Path, typer.Argument(help="What make_docs.py has written.")],
    tasks: Annotated[str, typer.Option(help="Only these.")] = ",".join(TASKS),
) -> None:
    """Time epochs without ELMo, with it, and without the cache of its layers."""
    os.environ["OMP_NUM_THREADS"] = "1"
    print("| task | without ELMo, s | first epoch | later | without the cache | later / without |")
    print("|---|---|---|---|---|---|")
    for task in tqdm(tasks.split(","), unit="task"):
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
            futures = [pool.submit(time_epochs, task, corpus, *kind) for kind in KINDS]
            plain, cached, computed = (future.result() for future in futures)
        print(
            f"| {TASKS[task].title} | {plain[-1]:.1f} | {cached[0]:.1f} | {cached[-1]:.1f} "
            f"| {computed[-1]:.1f} | {cached[-1] / plain[-1]:.2f} |"
        )


if __name__ == "__main__":
    typer.run(main)

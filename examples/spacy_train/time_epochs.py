"""Time epochs without ELMo, with ELMo, and with ELMo but no cache: `python time_epochs.py CORPUS`.

One thread trains the three pipelines in turn, on the first docs of a task. The result is the median
CPU time over epochs, so other programs on the machine have little effect.
"""

import time
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import torch
import typer
from compare import HERE
from spacy.language import Language
from spacy.training import Corpus, Example
from spacy.training.initialize import init_nlp
from spacy.util import load_config, minibatch, registry
from spacy_runs import TASKS, VARIANTS
from thinc.api import Optimizer
from threadpoolctl import threadpool_limits
from tqdm import tqdm

NUM_DOCS = 400
NUM_EPOCHS = 5  # after the first, which fills the cache
BATCH_SIZE = 32
KINDS = (("without", None), ("with", 2**30), ("with", 0))  # variant, and bytes of the cache


class Training(NamedTuple):
    """A pipeline that is being trained."""

    nlp: Language
    examples: list[Example]
    optimizer: Optimizer

    def time_epoch(self) -> float:
        """Train on every example once; return the CPU seconds."""
        start = time.process_time()
        for batch in minibatch(self.examples, BATCH_SIZE):
            self.nlp.update(batch, drop=0.1, sgd=self.optimizer)
        return time.process_time() - start


def start_training(task: str, corpus: Path, variant: str, cache_bytes: int | None) -> Training:
    train, dev = (str(corpus / task / f"{split}.spacy") for split in ("train", "dev"))
    path = HERE / "configs" / f"{TASKS[task].config}{VARIANTS[variant]}.cfg"
    settings = {"paths.train": train, "paths.dev": dev, "corpora.train.limit": NUM_DOCS}
    config = load_config(path, overrides=settings)
    if cache_bytes is not None:
        cache = {"@misc": "spacy_elmo.LayerCache.v1", "max_bytes": cache_bytes}
        config["initialize"] = {"components": {"elmo": {"cache": cache}}}
    nlp = init_nlp(config)
    optimizer = registry.resolve(nlp.config.interpolate()["training"])["optimizer"]
    return Training(nlp, list(Corpus(train, limit=NUM_DOCS)(nlp)), optimizer)


def main(
    corpus: Annotated[Path, typer.Argument(help="Folder that make_docs.py has written.")],
    tasks: Annotated[str, typer.Option(help="Only these tasks, with commas.")] = ",".join(TASKS),
) -> None:
    """Time epochs without ELMo, with ELMo, and with ELMo but no layer cache."""
    threadpool_limits(1)  # for NumPy; PyTorch has its own limit
    torch.set_num_threads(1)
    lines = [
        "| task | without ELMo | with ELMo, first epoch | with ELMo, later epochs "
        "| with ELMo, without cache | later epochs / without ELMo |",
        "|---|---|---|---|---|---|",
    ]
    for task in tqdm(tasks.split(","), unit="task"):
        trainings = [start_training(task, corpus, *kind) for kind in KINDS]
        first = [training.time_epoch() for training in trainings]
        rounds = [[training.time_epoch() for training in trainings] for _ in range(NUM_EPOCHS)]
        plain, cached, computed = map(median, zip(*rounds, strict=True))
        lines.append(
            f"| {TASKS[task].title} | {plain:.2f} | {first[1]:.2f} | {cached:.2f} "
            f"| {computed:.2f} | {cached / plain:.2f} |"
        )
    print("\n".join(lines))


if __name__ == "__main__":
    typer.run(main)

"""Train the six task models with ELMo and without, and write a table of their scores.

python examples/tasks/table.py ../shared/data results --vectors vectors.bin

Every run is a folder of RESULTS; what is finished is not run again, and what was broken off goes
on. Both sides read the same static vectors; one reads ELMo beside them.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from scipy.stats import bootstrap

from hf_elmo.tasks import TASKS, load_task_model
from hf_elmo.tasks.task import predict


class Data(NamedTuple):
    """Where a task's examples are, below the folder of data, and what the paper says.

    Attributes:
        train, dev, test: Files.
        paper: The paper's baseline, and its score with ELMo, in percent (Table 1).
    """

    train: str
    dev: str
    test: str
    paper: tuple[float, float]


DATA = {
    "squad": Data(
        "squad/squad1.1dev_train.json.gz",
        "squad/squad1.1dev_dev.json.gz",
        "squad/squad1.1dev_test.json.gz",
        (81.1, 85.8),
    ),
    "entailment": Data(
        "snli_sample/train.tsv.gz",
        "snli_sample/dev.tsv.gz",
        "snli_sample/test.tsv.gz",
        (88.0, 88.7),
    ),
    "srl": Data(
        "srl/propbank_ewt/train.jsonl.gz",
        "srl/propbank_ewt/dev.jsonl.gz",
        "srl/propbank_ewt/test.jsonl.gz",
        (81.4, 84.6),
    ),
    "coref": Data(
        "coref/litbank/train.conll.gz",
        "coref/litbank/dev.conll.gz",
        "coref/litbank/test.conll.gz",
        (67.2, 70.4),
    ),
    "ner": Data(
        "ner/wikigold/train.conll.gz",
        "ner/wikigold/dev.conll.gz",
        "ner/wikigold/test.conll.gz",
        (90.15, 92.22),
    ),
    "sentiment": Data("sst5/train.txt.gz", "sst5/dev.txt.gz", "sst5/test.txt.gz", (51.4, 54.7)),
}
SIDES = {"static": "none", "elmo": "input"}
CONFIDENCE = 0.95
HEADER = (
    "| task | metric | static | ELMo | relative error | 95 % of the difference | p | paper: static "
    "| ELMo | relative error | parameters | minutes | memory |"
)


def run(
    folder: Path, data: Path, task: str, side: str, seed: int, options: Sequence[str]
) -> dict[str, Any]:
    """Train and test one model, unless it is done; return what is known of it."""
    result = folder / "result.json"
    if result.exists():
        return json.loads(result.read_text("utf-8"))
    files = DATA[task]
    command = [sys.executable, "-m", "hf_elmo", "train", task]
    command += ["--train", str(data / files.train), "--dev", str(data / files.dev)]
    command += ["--output", str(folder), "--elmo", SIDES[side], "--seed", str(seed), *options]
    if any(folder.glob("checkpoint-*")):
        command.append("--resume")
    start = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # else it is waited for again
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}.")
    minutes = (time.monotonic() - start) / 60
    chosen, model, inputs = load_task_model(str(folder))
    examples = chosen.read(data / files.test)
    found = predict(chosen, model, inputs, examples)
    known = {
        "minutes": minutes,
        "megabytes": usage.ru_maxrss / 1024,
        "parameters": sum(w.numel() for w in model.parameters() if w.requires_grad),
        "found": found,
    }
    if model.config.num_mixes:
        mixes = [mix.weights.softmax(0).tolist() for mix in model.features.scalar_mixes]
        known["mixes"] = mixes
    result.write_text(json.dumps(known), "utf-8")
    return json.loads(result.read_text("utf-8"))


def freeze(found: Any) -> Any:
    """Turn JSON's lists into tuples, which can be members of sets."""
    return tuple(map(freeze, found)) if isinstance(found, list) else found


def compare(
    task: str, examples: Sequence[Any], static: Sequence[Any], elmo: Sequence[Any], resamples: int
) -> tuple[float, float, float]:
    """Resample the test's examples; return the bounds of the difference and p, two-sided."""
    chosen = TASKS[task]

    def score(found: Sequence[Any], rows: np.ndarray) -> float:
        return chosen.score([examples[i] for i in rows], [found[i] for i in rows])[chosen.metric]

    def difference(rows: np.ndarray) -> float:
        return mean(score(b, rows) - score(a, rows) for a, b in zip(static, elmo, strict=True))

    got = bootstrap(
        (np.arange(len(examples)),),
        difference,
        n_resamples=resamples,
        vectorized=False,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=0,
    )
    drawn = got.bootstrap_distribution
    p = 2 * min((drawn <= 0).mean(), (drawn >= 0).mean())
    low, high = got.confidence_interval
    return low, high, max(p, 1 / resamples)


def reduce_error(before: float, after: float) -> float:
    """Compute the share of the error that is gone."""
    return (after - before) / (1 - before)


def write_row(task: str, data: Path, runs: dict[str, list[dict[str, Any]]], resamples: int) -> str:
    """Write a task's row of the table."""
    chosen = TASKS[task]
    examples = chosen.read(data / DATA[task].test)
    found = {side: [freeze(one["found"]) for one in each] for side, each in runs.items()}
    scores = {
        side: [chosen.score(examples, one)[chosen.metric] for one in each]
        for side, each in found.items()
    }
    low, high, p = compare(task, examples, found["static"], found["elmo"], resamples)
    shown = [
        f"{100 * mean(each):.1f} ± {100 * stdev(each) if len(each) > 1 else 0:.1f}"
        for each in scores.values()
    ]
    paper = DATA[task].paper
    last = runs["elmo"]
    cells = [
        task,
        chosen.metric,
        *shown,
        f"{100 * reduce_error(mean(scores['static']), mean(scores['elmo'])):.1f} %",
        f"{100 * low:+.1f} to {100 * high:+.1f}",
        f"{p:.3f}",
        *(f"{number:.1f}" for number in paper),
        f"{100 * reduce_error(paper[0] / 100, paper[1] / 100):.1f} %",
        f"{last[0]['parameters']:,}",
        f"{mean(one['minutes'] for one in last):.0f}",
        f"{max(one['megabytes'] for one in last):.0f} MB",
    ]
    return f"| {' | '.join(cells)} |"


def main(
    data: Annotated[Path, typer.Argument(help="Folder of data.")],
    results: Annotated[Path, typer.Argument(help="Folder of all runs.")],
    vectors: Annotated[Path, typer.Option(help="Static vectors of the biLM's own text.")],
    tasks: Annotated[list[str], typer.Option(help="Tasks to run.")] = list(DATA),  # noqa: B006 (typer's way)
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    resamples: Annotated[int, typer.Option(help="Of the paired bootstrap.", min=1)] = 1000,
    epochs: Annotated[int | None, typer.Option(help="Epochs at most.", min=1)] = None,
    model: Annotated[str | None, typer.Option(help="The biLM; else the bundled one.")] = None,
) -> None:
    """Run what is missing, and print the table."""
    options = ["--vectors", str(vectors)]
    options += [] if epochs is None else ["--epochs", str(epochs)]
    options += [] if model is None else ["--model", model]
    rows = []
    for task in tasks:
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for seed in range(1, seeds + 1):
            for side in SIDES:
                folder = results / f"{task}-{side}-{seed}"
                runs[side].append(run(folder, data, task, side, seed, options))
        rows.append(write_row(task, data, runs, resamples))
    print(HEADER)
    print("|---" * HEADER.count(" | ") + "|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    typer.run(main)

"""Train the six task models with ELMo and without, and write a table of their scores.

python examples/tasks/table.py ../shared/data examples/tasks/results --vectors vectors.bin

Every run is a folder of RESULTS; what is finished is not run again, and what was broken off goes
on. A finished run's `result.json` is all that the tables need. Both sides read the same static
vectors and train for as many epochs; one reads ELMo beside them. With two tables of other --tasks,
two processors are at work.
"""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain, count, product, takewhile
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from scipy.stats import bootstrap

from hf_elmo.tasks import TASKS, load_task_model
from hf_elmo.tasks.task import predict
from hf_elmo.training.time_bound import read_seconds


class Data(NamedTuple):
    """Where a task's examples are, below the folder of data, and what the paper says.

    Attributes:
        train, dev, test: Files.
        paper: The paper's baseline, and its score with ELMo, in percent (Table 1).
        num_folds: Parts into which the documents of all three files are put, each of which is the
            test of a model of its own; 1 = the files are as they are.
    """

    train: str
    dev: str
    test: str
    paper: tuple[float, float]
    num_folds: int = 1


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
        num_folds=5,
    ),
    "ner": Data(
        "ner/wikigold/train.conll.gz",
        "ner/wikigold/dev.conll.gz",
        "ner/wikigold/test.conll.gz",
        (90.15, 92.22),
    ),
    "sentiment": Data("sst5/train.txt.gz", "sst5/dev.txt.gz", "sst5/test.txt.gz", (51.4, 54.7)),
}
# With ELMo it is read where the preset has it, as in the paper: at the input, for questions and
# entailment also at the output.
SIDES = {"static": ["--elmo", "none"], "elmo": []}
CONFIDENCE = 0.95
HEADER = (
    "| task | metric | seeds | static | ELMo | relative error | 95 % of the difference | p "
    "| paper: static | paper: ELMo | paper: relative error | parameters | CPU minutes: static "
    "| CPU minutes: ELMo | memory |"
)
DOCUMENT_START = "#begin document"


def list_files(data: Path, results: Path, task: str) -> list[Data]:
    """List a task's files, those of each fold; folds are written if they are not there."""
    files = DATA[task]
    if files.num_folds == 1:
        return [Data(*(str(data / name) for name in files[:3]), files.paper)]
    text = "".join(gzip.decompress((data / name).read_bytes()).decode() for name in files[:3])
    documents = [DOCUMENT_START + part for part in text.split(DOCUMENT_START)[1:]]
    folds = [documents[number :: files.num_folds] for number in range(files.num_folds)]
    listed = []
    for number, test in enumerate(folds):
        others = [*folds[number + 1 :], *folds[:number]]
        half = len(others[0]) // 2
        train = [*others[0][half:], *chain(*others[1:])]
        folder = results / f"{task}-fold-{number + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        names = [str(folder / f"{part}.conll") for part in ("train", "dev", "test")]
        for name, part in zip(names, (train, others[0][:half], test), strict=True):
            if not Path(name).exists():  # another table may read it now
                write_whole(Path(name), "".join(part))
        listed.append(Data(*names, files.paper))
    return listed


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, "utf-8")
    part.replace(path)


def name_result(results: Path, task: str, side: str, seed: int, fold: int) -> Path:
    """Name the file of what is known of a run."""
    folder = results / f"{task}-{side}-{seed}"
    return (folder / str(fold + 1) if DATA[task].num_folds > 1 else folder) / "result.json"


def run(
    data: Path, results: Path, task: str, side: str, seed: int, fold: int, options: Sequence[str]
) -> None:
    """Train and test one model, and write down what is known of it, unless it is done."""
    result = name_result(results, task, side, seed, fold)
    if result.exists():
        return
    folder = result.parent
    files = list_files(data, results, task)[fold]
    command = [sys.executable, "-m", "hf_elmo", "train", task]
    command += ["--train", files.train, "--dev", files.dev, "--output", str(folder)]
    command += [*SIDES[side], "--seed", str(seed), "--resume", *options]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        # Threads cost more processor time than they save in models of this size.
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        process = subprocess.Popen(command, stdout=log, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # else it is waited for again
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}.")
    chosen, model, inputs = load_task_model(str(folder))
    examples = chosen.read(Path(files.test))
    found = predict(chosen, model, inputs, examples)
    known = {
        "minutes": read_seconds(folder) / 60,
        "megabytes": usage.ru_maxrss / 1024,
        "parameters": sum(w.numel() for w in model.parameters() if w.requires_grad),
        "counts": count_by_text(task, examples, found),
    }
    if model.config.num_mixes:
        known["mixes"] = [
            [*mix.weights.softmax(0).tolist(), mix.gamma.item()]
            for mix in model.features.scalar_mixes
        ]
    write_whole(result, json.dumps(known))


def read_runs(results: Path, task: str) -> dict[str, list[list[dict[str, Any]]]]:
    """Read what is known of a task's runs, by side, seed and fold; only of seeds that are done."""
    folds = range(DATA[task].num_folds)

    def is_done(seed: int) -> bool:
        names = (name_result(results, task, *run) for run in product(SIDES, [seed], folds))
        return all(name.exists() for name in names)

    def read(*run: Any) -> dict[str, Any]:
        return json.loads(name_result(results, task, *run).read_text("utf-8"))

    seeds = list(takewhile(is_done, count(1)))
    return {side: [[read(side, seed, fold) for fold in folds] for seed in seeds] for side in SIDES}


def count_by_text(task: str, examples: Sequence[Any], found: Sequence[Any]) -> list[list[float]]:
    """Compare predictions with examples, in numbers that add up; shape `(texts, numbers)`.

    A text is a document of coreference, a paragraph with all its questions, a sentence with all
    its predicates, a premise with all its hypotheses: what is asked of one text is not independent.
    """
    chosen = TASKS[task]
    sums: dict[Any, Any] = {}
    for example, one in zip(examples, found, strict=True):
        text = example.name if task == "coref" else tuple(chosen.texts(example)[0])
        sums[text] = sums.get(text, 0) + np.array(chosen.count(example, one))
    return [counts.tolist() for counts in sums.values()]


def score(task: str, counts: np.ndarray) -> float:
    """Score one run by its counts, shape `(texts, numbers)`."""
    return TASKS[task].scores.total(counts.sum(axis=0).tolist())[TASKS[task].metric]


def compare(task: str, counts: np.ndarray, resamples: int) -> tuple[float, float, float]:
    """Resample the test's texts; return the bounds of the difference and p, two-sided.

    Counts are of shape `(sides, seeds, texts, numbers)`: without ELMo, with ELMo.
    """

    def difference(drawn: np.ndarray) -> float:
        before, after = (mean(score(task, seed[drawn]) for seed in side) for side in counts)
        return after - before

    got = bootstrap(
        (np.arange(counts.shape[2]),),
        difference,
        n_resamples=resamples,
        vectorized=False,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=0,
    )
    drawn = got.bootstrap_distribution
    fewer = min((drawn <= 0).sum(), (drawn >= 0).sum())
    low, high = got.confidence_interval
    return low, high, min(1.0, 2 * (1 + fewer) / (1 + resamples))


def reduce_error(before: float, after: float) -> float:
    """Compute the share of the error that is gone."""
    return (after - before) / (1 - before)


def gather_counts(runs: dict[str, list[list[dict[str, Any]]]]) -> np.ndarray:
    """Gather the counts of runs by side, seed and fold; shape `(sides, seeds, texts, numbers)`."""
    return np.array(
        [[[*chain(*(one["counts"] for one in folds))] for folds in runs[side]] for side in SIDES]
    )


def write_row(task: str, runs: dict[str, list[list[dict[str, Any]]]], resamples: int) -> str:
    """Write a task's row of the table, of its runs by side, seed and fold."""
    counts = gather_counts(runs)
    scores = [[score(task, seed) for seed in side] for side in counts]
    low, high, p = compare(task, counts, resamples)
    shown = [
        f"{100 * mean(each):.1f}" + (f" ± {100 * stdev(each):.1f}" if len(each) > 1 else "")
        for each in scores
    ]
    paper = DATA[task].paper
    last = list(chain(*runs["elmo"]))
    cells = [
        task,
        TASKS[task].metric,
        str(counts.shape[1]),
        *shown,
        f"{100 * reduce_error(*map(mean, scores)):.1f} %",
        f"{100 * low:+.1f} to {100 * high:+.1f}",
        f"{p:.3f}",
        *(f"{number:.1f}" for number in paper),
        f"{100 * reduce_error(paper[0] / 100, paper[1] / 100):.1f} %",
        f"{last[0]['parameters']:,}",
        *(f"{mean(one['minutes'] for one in chain(*seeds)):.0f}" for seeds in runs.values()),
        f"{max(one['megabytes'] for one in last):.0f} MB",
    ]
    return f"| {' | '.join(cells)} |"


def write_mixes(task: str, seeds: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    """Write a task's rows of the table of mixes, one a place: means over seeds and folds."""
    means = np.mean([one["mixes"] for one in chain(*seeds)], axis=0)
    return [
        f"| {task} | {place} | {' | '.join(f'{number:.2f}' for number in numbers)} |"
        for place, numbers in zip(("input", "output"), means, strict=False)
    ]


def print_table(header: str, rows: Sequence[str]) -> None:
    """Print a table of Markdown."""
    print(header)
    print("|---" * header.count(" | ") + "|---|")
    print("\n".join(rows))


def main(
    data: Annotated[Path, typer.Argument(help="Folder of data.")],
    results: Annotated[Path, typer.Argument(help="Folder of all runs.")],
    vectors: Annotated[Path, typer.Option(help="Static vectors of the biLM's own text.")],
    tasks: Annotated[list[str], typer.Option(help="Tasks to run.")] = list(DATA),  # noqa: B006 (typer's way)
    seeds: Annotated[int, typer.Option(help="To run; all that are done are shown.", min=1)] = 3,
    resamples: Annotated[int, typer.Option(help="Of the paired bootstrap.", min=1)] = 1000,
    max_minutes: Annotated[
        float,
        typer.Option(
            help="Processor time after which a training ends; folds share twice as much.", min=0
        ),
    ] = 25,
    cache_bytes: Annotated[int, typer.Option(help="Of the biLM's layers.", min=0)] = 2**31,
    epochs: Annotated[int | None, typer.Option(help="Epochs at most.", min=1)] = None,
    model: Annotated[str | None, typer.Option(help="The biLM; else the bundled one.")] = None,
) -> None:
    """Run what is missing, and print the tables: scores, and learned mixes."""
    common = ["--vectors", str(vectors), "--cache-bytes", str(cache_bytes)]
    common += [] if epochs is None else ["--epochs", str(epochs)]
    common += [] if model is None else ["--model", model]
    rows, mixes = [], []
    for task in tasks:
        num_folds = DATA[task].num_folds
        minutes = max_minutes if num_folds == 1 else 2 * max_minutes / num_folds
        options = [*common, "--max-minutes", str(minutes)]
        for seed, side, fold in product(range(1, seeds + 1), SIDES, range(num_folds)):
            run(data, results, task, side, seed, fold, options)
        runs = read_runs(results, task)
        rows.append(write_row(task, runs, resamples))
        mixes += write_mixes(task, runs["elmo"])
    print_table(HEADER, rows)
    print()
    names = (f"layer {number}" for number in range(mixes[0].count(" | ") - 2))
    print_table(f"| task | at | {' | '.join(names)} | gamma |", mixes)


if __name__ == "__main__":
    typer.run(main)

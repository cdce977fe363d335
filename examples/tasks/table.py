"""Train the six task models with ELMo and without, and write a table of their scores.

python examples/tasks/table.py ../shared/data results --vectors vectors.bin

Every run is a folder of RESULTS; what is finished is not run again, and what was broken off goes
on. Both sides read the same static vectors and train for as many epochs; one reads ELMo beside
them. With two tables of other --tasks, two processors are at work.
"""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from scipy.stats import bootstrap

from hf_elmo.tasks import TASKS, load_task_model
from hf_elmo.tasks.task import Task, predict
from hf_elmo.tasks.time_bound import read_seconds


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
    "| task | metric | static | ELMo | relative error | 95 % of the difference | p | paper: static "
    "| ELMo | relative error | parameters | CPU minutes: static | ELMo | memory |"
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


def run(
    folder: Path, files: Data, task: str, side: str, seed: int, options: Sequence[str]
) -> dict[str, Any]:
    """Train and test one model, unless it is done; return what is known of it."""
    result = folder / "result.json"
    if result.exists():
        return json.loads(result.read_text("utf-8"))
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
    found = predict(chosen, model, inputs, chosen.read(Path(files.test)))
    known = {
        "minutes": read_seconds(folder) / 60,
        "megabytes": usage.ru_maxrss / 1024,
        "parameters": sum(w.numel() for w in model.parameters() if w.requires_grad),
        "found": found,
    }
    if model.config.num_mixes:
        known["mixes"] = [
            [*mix.weights.softmax(0).tolist(), mix.gamma.item()]
            for mix in model.features.scalar_mixes
        ]
    write_whole(result, json.dumps(known))
    return json.loads(result.read_text("utf-8"))


def freeze(found: Any) -> Any:
    """Turn JSON's lists into tuples, which can be members of sets."""
    return tuple(map(freeze, found)) if isinstance(found, list) else found


def compare(
    task: str, examples: Sequence[Any], static: Sequence[Any], elmo: Sequence[Any], resamples: int
) -> tuple[float, float, float]:
    """Resample the test's texts; return the bounds of the difference and p, two-sided.

    A text is a document of coreference, a paragraph with all its questions, a sentence with all
    its predicates, a premise with all its hypotheses: what is asked of one text is not independent.
    """
    chosen = TASKS[task]
    texts = [_tell_text(task, example) for example in examples]
    rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    counts = np.array(
        [
            [_count_by_text(chosen, examples, run, texts, rows) for run in side]
            for side in (static, elmo)
        ]
    )  # (sides, runs, texts, numbers)

    def difference(drawn: np.ndarray) -> float:
        sums = counts[:, :, drawn].sum(axis=2).tolist()
        before, after = ([chosen.scores.total(x)[chosen.metric] for x in side] for side in sums)
        return mean(after) - mean(before)

    got = bootstrap(
        (np.arange(len(rows)),),
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


def _tell_text(task: str, example: Any) -> tuple[Any, ...]:
    """Return what tells an example's text from others."""
    return (example.name,) if task == "coref" else tuple(TASKS[task].texts(example)[0])


def _count_by_text(
    chosen: Task,
    examples: Sequence[Any],
    found: Sequence[Any],
    texts: Sequence[Any],
    rows: dict[Any, int],
) -> np.ndarray:
    """Compare predictions with examples, in numbers that add up; shape `(texts, numbers)`."""
    counts = [chosen.count(*pair) for pair in zip(examples, found, strict=True)]
    sums = np.zeros((len(rows), len(counts[0])))
    np.add.at(sums, [rows[text] for text in texts], counts)
    return sums


def reduce_error(before: float, after: float) -> float:
    """Compute the share of the error that is gone."""
    return (after - before) / (1 - before)


def write_row(
    task: str, tests: Sequence[str], runs: dict[str, list[list[dict[str, Any]]]], resamples: int
) -> str:
    """Write a task's row of the table; runs are by side, seed and fold."""
    chosen = TASKS[task]
    examples = [example for test in tests for example in chosen.read(Path(test))]
    found = {
        side: [[freeze(one) for fold in folds for one in fold["found"]] for folds in seeds]
        for side, seeds in runs.items()
    }
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
    last = list(chain(*runs["elmo"]))
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
    seeds: Annotated[int, typer.Option(min=1)] = 3,
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
        files = list_files(data, results, task)
        minutes = max_minutes if len(files) == 1 else 2 * max_minutes / len(files)
        options = [*common, "--max-minutes", str(minutes)]
        runs: dict[str, list[list[dict[str, Any]]]] = {side: [] for side in SIDES}
        for seed in range(1, seeds + 1):
            for side in SIDES:
                name = f"{task}-{side}-{seed}"
                folders = [results / name]
                if len(files) > 1:
                    folders = [results / name / str(fold + 1) for fold in range(len(files))]
                folds = zip(folders, files, strict=True)
                runs[side].append([run(*fold, task, side, seed, options) for fold in folds])
        rows.append(write_row(task, [one.test for one in files], runs, resamples))
        mixes += write_mixes(task, runs["elmo"])
    print_table(HEADER, rows)
    print()
    names = (f"layer {number}" for number in range(mixes[0].count(" | ") - 2))
    print_table(f"| task | at | {' | '.join(names)} | gamma |", mixes)


if __name__ == "__main__":
    typer.run(main)

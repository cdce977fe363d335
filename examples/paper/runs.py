"""Training runs shared by all tables and figures: make each one once, and compare them.

A run is a folder of the results. Its `result.json` is all that tables and figures need. An
interrupted run continues from its last epoch.
"""

import gzip
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any, NamedTuple

import matplotlib as mpl
import numpy as np
import torch
import typer
from matplotlib.figure import Figure
from scipy.stats import bootstrap

from hf_elmo.bundled import BUNDLED_NAME
from hf_elmo.loading import find_device
from hf_elmo.tasks import TASKS, load_task_model
from hf_elmo.tasks.task import predict
from hf_elmo.training.time_bound import read_seconds


class Data(NamedTuple):
    """Files of a task, relative to the folder of data, and its scores in the paper.

    Attributes:
        train, dev, test: Files.
        paper: The paper's test scores without and with ELMo, in percent (Table 1).
        num_folds: Number of folds for cross-validation over the documents of all three files; 1 =
            use the files as they are.
        separator: Text between two independent parts of the training file.
    """

    train: str
    dev: str
    test: str
    paper: tuple[float, float]
    num_folds: int = 1
    separator: str = "\n"


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
        separator="\n\n",
    ),
    "sentiment": Data("sst5/train.txt.gz", "sst5/dev.txt.gz", "sst5/test.txt.gz", (51.4, 54.7)),
}
TITLES = {
    "squad": "questions",
    "entailment": "entailment",
    "srl": "roles",
    "coref": "coreference",
    "ner": "entities",
    "sentiment": "sentiment",
}
# Options of each configuration. `elmo` reads ELMo where the preset does, as in the paper: at the
# input of the encoder, and for questions and entailment also at its output.
CONFIGS: dict[str, list[str]] = {
    "static": ["--elmo", "none"],
    "elmo": [],
    "top": ["--mix-layers", "top"],
    "lambda-1": ["--mix-l2", "1"],
    "input": ["--elmo", "input"],
    "output": ["--elmo", "output"],
    "both": ["--elmo", "both"],
    "words": ["--mix-layers", "words"],
    "elmo-alone": [],
    "words-alone": ["--mix-layers", "words"],
    "words-input": ["--mix-layers", "words", "--elmo", "input"],
}
WITHOUT_VECTORS = ("elmo-alone", "words-alone", "words-input")
WITHOUT_CONTEXT = ("static", "words", "words-alone", "words-input")
# End of the name of a configuration with static vectors of 100 dimensions instead of 256.
NARROW = "-100"
SIDES = ("static", "elmo")
LABELS = ("static vectors", "static vectors and ELMo")
SEEDS = (1, 2, 3)
# Share of the training data in Tables 2, 3 and 7, which need many runs. With 10 % of the questions,
# it depends on the initial weights whether `elmo` learns to compare question and paragraph.
GRID = {"entailment": 0.1, "srl": 0.1, "squad": 1.0}
# Numbers of epochs of configurations without context and with it, by task, or by task and
# configuration; `table_epochs.py` tries others.
EPOCHS = {
    "squad": (24, 9),
    "squad-input": (24, 24),
    "entailment": (30, 30),
    "entailment" + NARROW: (15, 15),
    "srl": (10, 10),
    "srl" + NARROW: (5, 5),
    "coref": (36, 36),
    "coref" + NARROW: (9, 9),
    "ner": (100, 50),
    "sentiment": (8, 8),
    "sentiment" + NARROW: (4, 4),
}
# Samples are repeated, so that training has enough steps: the least number of times, and the least
# length of an epoch, as a share of the training data.
LEAST_TIMES = 2
LEAST_EPOCH = 0.2
RESAMPLES = 1000
CONFIDENCE = 0.95
DARK_LOOK = """<style>
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  [style*="stroke: #000000"] { stroke: #c9d1d9 !important; }
}
</style>"""
DOCUMENT_START = "#begin document"


class Run(NamedTuple):
    """One model to train and test.

    Attributes:
        task: Name of the task.
        config: Name in `CONFIGS`, with `NARROW` at its end for narrow static vectors.
        seed: Seed of the model, and of the sample of the training data.
        share: Share of the training data.
        fold: Number of the fold, from 0.
        epochs: Number of epochs.
    """

    task: str
    config: str
    seed: int = 1
    share: float = 1.0
    fold: int = 0
    epochs: int = 1

    def find_folder(self, results: Path) -> Path:
        """Return the folder of the run."""
        share = "" if self.share == 1 else f"-{self.share:g}"
        name = f"{self.task}-{self.config}-{self.seed}{share}-{self.epochs}-epochs"
        folder = results / name
        return folder / str(self.fold + 1) if DATA[self.task].num_folds > 1 else folder


class Settings(NamedTuple):
    """Settings of all runs.

    Attributes:
        data: Folder of data.
        results: Folder of runs.
        vectors: Static vectors that were trained on the biLM's own text; those with 100 dimensions
            are beside them: `vectors-100.bin` beside `vectors.bin`.
        model: The biLM.
        deadline: End of all work, in seconds of `time.monotonic`.
        options: Further options of `python -m hf_elmo train`.
        jobs: Number of runs side by side.
    """

    data: Path
    results: Path
    vectors: Path
    model: str = BUNDLED_NAME
    deadline: float = math.inf
    options: Sequence[str] = ()
    jobs: int = 1


def read_text(path: Path) -> str:
    """Read a compressed text file."""
    return gzip.decompress(path.read_bytes()).decode()


def write_file(path: Path, text: str) -> str:
    """Write a file atomically, unless it exists; return its path."""
    if not path.exists():  # another process may read it now
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_text(text, "utf-8")
        part.replace(path)
    return str(path)


def list_files(run: Run, data: Path, results: Path) -> list[str]:
    """List the files of a run: train, dev, test; write its fold or its sample."""
    chosen = DATA[run.task]
    files = [data / name for name in chosen[:3]]
    if chosen.num_folds > 1:
        return write_folds(run, files, results)
    if run.share < 1:
        name = f"{run.task}-{run.seed}-{run.share:g}-{LEAST_TIMES}-{LEAST_EPOCH:g}-2"  # version 2
        path = results / "samples" / (name + "".join(files[0].suffixes[-2:-1]))
        files[0] = Path(write_file(path, draw_sample(run, read_text(files[0]))))
    return [str(name) for name in files]


def draw_sample(run: Run, text: str) -> str:
    """Draw a share of the training data, and repeat it."""
    separator = DATA[run.task].separator
    data = json.loads(text)["data"] if run.task == "squad" else None
    parts = [paragraph for article in data for paragraph in article["paragraphs"]] if data else []
    parts = parts or text.strip().split(separator)
    random.Random(run.seed).shuffle(parts)  # a larger sample contains the smaller ones
    chosen = parts[: max(1, round(run.share * len(parts)))]
    if run.task == "entailment":  # the dev part has all three labels
        first = {part.partition("\t")[0]: part for part in reversed(parts)}
        missing = [part for part in first.values() if part not in chosen]
        chosen = chosen[: max(0, len(chosen) - len(missing))] + missing
    parts = chosen * max(LEAST_TIMES, round(LEAST_EPOCH / run.share))
    if data:
        parts = json.loads(json.dumps(parts))  # copies: each question needs its own id
        for number, question in enumerate(chain(*(paragraph["qas"] for paragraph in parts))):
            question["id"] = str(number)
        return json.dumps({"data": [{"paragraphs": parts}]})
    return separator.join(parts) + separator


def write_folds(run: Run, files: Sequence[Path], results: Path) -> list[str]:
    """Write documents: one fold as test set, half a fold as dev set, the others as training set."""
    documents = [
        DOCUMENT_START + part
        for path in files
        for part in read_text(path).split(DOCUMENT_START)[1:]
    ]
    num_folds = DATA[run.task].num_folds
    folds = [documents[number::num_folds] for number in range(num_folds)]
    test = folds[run.fold]
    others = [*folds[run.fold + 1 :], *folds[: run.fold]]
    half = len(others[0]) // 2
    train = [*others[0][half:], *chain(*others[1:])]
    folder = results / "samples" / f"{run.task}-fold-{run.fold + 1}"
    parts = {"train": train, "dev": others[0][:half], "test": test}
    return [write_file(folder / f"{name}.conll", "".join(part)) for name, part in parts.items()]


def list_recipe(run: Run) -> list[str]:
    """List the options for the length of training."""
    epochs = str(run.epochs)
    return ["--schedule", "linear", "--epochs", epochs, "--patience", epochs]


def choose_epochs(task: str, config: str) -> int:
    """Return the usual number of epochs."""
    name = config.removesuffix(NARROW)
    keys = f"{task}-{name}", task + config.removeprefix(name), task
    usual = next(EPOCHS[key] for key in keys if key in EPOCHS)
    return usual[name not in WITHOUT_CONTEXT]


def hold_to_settings(settings: Settings) -> None:
    """Refuse a folder with results of another biLM, or of other options of training."""
    path = settings.results / "settings.json"
    usual = {"model": BUNDLED_NAME, "options": []}
    used = {"model": settings.model, "options": list(settings.options)}
    has_results = any(settings.results.rglob("*.json"))
    before = json.loads(path.read_text("utf-8")) if path.exists() else usual
    if has_results and used != before:
        raise ValueError(
            f"Expected another folder for results: those in {settings.results} were made with "
            f"{before}, these would be with {used}."
        )
    if used != usual:
        write_file(path, json.dumps(used))


def find_vectors(run: Run, settings: Settings) -> Path:
    """Find the file of the run's static vectors."""
    path = settings.vectors
    if run.config.endswith(NARROW):
        name, dot, suffix = path.name.partition(".")
        path = path.with_name(f"{name}{NARROW}{dot}{suffix}")
    if not path.is_file():
        raise FileNotFoundError(f"No static vectors {path}: make them by train_vectors.py.")
    return path


def make(run: Run, settings: Settings) -> bool:
    """Train and test one model, and write its result; return False if the deadline comes first."""
    hold_to_settings(settings)
    folder = run.find_folder(settings.results)
    if (folder / "result.json").exists():
        return True
    left = settings.deadline - time.monotonic()
    if left <= 0:
        return False
    train, dev, test = list_files(run, settings.data, settings.results)
    command = [sys.executable, "-m", "hf_elmo", "train", run.task]
    command += ["--train", train, "--dev", dev, "--output", str(folder), "--seed", str(run.seed)]
    command += ["--resume", "--model", settings.model]
    config = run.config.removesuffix(NARROW)
    command += [*list_recipe(run), *CONFIGS[config], *settings.options]
    if config not in WITHOUT_VECTORS:
        command += ["--vectors", str(find_vectors(run, settings))]
    folder.mkdir(parents=True, exist_ok=True)
    # Threads cost more processor time than they save in models of this size.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    limit = None if left == math.inf else left
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        try:
            subprocess.run(
                ["nice", "-n", "19", *command],
                stdout=log,
                env=environment,
                timeout=limit,
                check=True,
            )
        except subprocess.TimeoutExpired:
            return False
    write_file(folder / "result.json", json.dumps(describe(run.task, folder, Path(test))))
    for path in folder.iterdir():  # the models of all runs would fill a disk
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "result.json":
            path.unlink()
    return True


def describe(task: str, folder: Path, test: Path) -> dict[str, Any]:
    """Test a trained model; return its costs, device, learning curve, mixes and counts per text."""
    chosen, model, inputs = load_task_model(str(folder))
    model.to(find_device(None))
    examples = chosen.read(test)
    found = predict(chosen, model, inputs, examples)
    states = folder.glob("checkpoint-*/trainer_state.json")
    last = max((json.loads(path.read_text("utf-8")) for path in states), key=lambda x: x["epoch"])
    name = f"eval_{chosen.metric}"
    known: dict[str, Any] = {
        "minutes": round(read_seconds(folder) / 60, 2),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "parameters": sum(w.numel() for w in model.parameters() if w.requires_grad),
        "curve": [round(entry[name], 4) for entry in last["log_history"] if name in entry],
        "counts": count_by_text(task, examples, found),
    }
    if model.config.num_mixes:
        known["mixes"] = [
            [round(x, 4) for x in [*mix.weights.softmax(0).tolist(), mix.gamma.item()]]
            for mix in model.features.scalar_mixes
        ]
    return known


def count_by_text(task: str, examples: Sequence[Any], found: Sequence[Any]) -> list[list[float]]:
    """Compare predictions with examples; add up the counts of each text, shape `(texts, numbers)`.

    A text is a document (coreference), a paragraph with all its questions, a sentence with all its
    predicates, or a premise with all its hypotheses. Examples of one text are not independent.
    """
    chosen = TASKS[task]
    sums: dict[Any, Any] = {}
    for example, one in zip(examples, found, strict=True):
        text = example.name if task == "coref" else tuple(chosen.texts(example)[0])
        sums[text] = sums.get(text, 0) + np.array(chosen.count(example, one))
    return [[round(x, 4) for x in counts.tolist()] for counts in sums.values()]


def list_runs(task: str, configs: Iterable[str], share: float = 1.0) -> list[Run]:
    """List the runs of configurations of a task, by seed, configuration and fold.

    Args:
        task: Name of the task.
        configs: Names of configurations.
        share: Share of the training data.
    """
    lengths = {config: choose_epochs(task, config) for config in configs}
    return [
        Run(task, config, seed, share, fold, number)
        for seed in SEEDS
        for config, number in lengths.items()
        for fold in range(DATA[task].num_folds)
    ]


def read_runs(results: Path, task: str, config: str, share: float = 1.0) -> list[list[Any]]:
    """Read the results of a configuration by seed and fold, up to the first missing seed."""
    runs = list_runs(task, [config], share)
    seeds = []
    for seed in SEEDS:
        folders = [run.find_folder(results) for run in runs if run.seed == seed]
        if not all((folder / "result.json").exists() for folder in folders):
            break
        seeds.append([json.loads((x / "result.json").read_text("utf-8")) for x in folders])
    return seeds


def gather_counts(seeds: Sequence[Sequence[Any]]) -> np.ndarray:
    """Gather the counts of all folds; shape `(seeds, texts, numbers)`."""
    return np.array([[*chain(*(one["counts"] for one in folds))] for folds in seeds])


def score(task: str, counts: np.ndarray) -> float:
    """Score one run in percent from its counts, shape `(texts, numbers)`."""
    return 100 * TASKS[task].scores.total(counts.sum(axis=0).tolist())[TASKS[task].metric]


def reduce_error(before: float, after: float) -> float:
    """Compute the share of the error that ELMo removes, in percent; scores are in percent."""
    return 100 * (after - before) / (100 - before)


def compare(
    scorer: Callable[[np.ndarray], float], before: np.ndarray, after: np.ndarray
) -> tuple[float, float, float]:
    """Bootstrap over texts and seeds; return the interval of the difference of scores, and p.

    Each resample draws texts, and seeds if there are several, for both sides together: the
    multi-bootstrap of Sellam et al. (2022), section 3, with paired seeds. p is two-sided.

    Args:
        scorer: Scores counts, shape `(texts, numbers)`.
        before: Counts of one side, shape `(seeds, texts, numbers)`; the seeds' scores are averaged.
        after: Counts of the other side.
    """
    seeds, texts = (np.arange(size) for size in before.shape[:2])

    def difference(drawn: np.ndarray, drawn_seeds: np.ndarray = seeds) -> float:
        gains = {x: scorer(after[x, drawn]) - scorer(before[x, drawn]) for x in set(drawn_seeds)}
        return mean(gains[x] for x in drawn_seeds)

    got = bootstrap(
        (texts, seeds) if len(seeds) > 1 else (texts,),
        difference,
        n_resamples=RESAMPLES,
        vectorized=False,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=0,
    )
    drawn = got.bootstrap_distribution
    fewer = min((drawn <= 0).sum(), (drawn >= 0).sum())
    low, high = got.confidence_interval
    return low, high, min(1.0, 2 * (1 + fewer) / (1 + RESAMPLES))


def show_scores(scores: Sequence[float]) -> str:
    """Format a mean and a standard deviation."""
    return f"{mean(scores):.1f}" + (f" ± {stdev(scores):.1f}" if len(scores) > 1 else "")


def show_interval(
    scorer: Callable[[np.ndarray], float], before: np.ndarray, after: np.ndarray
) -> str:
    """Format the interval of a difference, over the seeds that both sides have."""
    seeds = min(len(before), len(after))
    low, high, _ = compare(scorer, before[:seeds], after[:seeds])
    return f"{low:+.1f} to {high:+.1f}"


def write_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure that adapts to dark mode; the same figure gives the same bytes."""
    with mpl.rc_context({"svg.hashsalt": "paper", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None}, transparent=True)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("</defs>", f"</defs>{DARK_LOOK}", 1), encoding="utf-8")


DataFolder = Annotated[Path, typer.Argument(help="Folder of data.")]
Results = Annotated[Path, typer.Argument(help="Folder of all runs.")]
Vectors = Annotated[
    Path,
    typer.Option(
        help="Static vectors that were trained on the biLM's own text, with as many dimensions as "
        "ELMo. For narrower ones, the name ends in -100: vectors-100.bin beside vectors.bin."
    ),
]
Model = Annotated[str, typer.Option(help="Folder or name of the biLM.")]
Hours = Annotated[float, typer.Option(help="Stop after this time; run again to continue.")]
Jobs = Annotated[int, typer.Option(help="Runs side by side, with one thread each.", min=1)]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", help='Option for `python -m hf_elmo train`, such as "--epochs=1".'),
]


def serve(make_all: Callable[[Settings], object], write: Callable[[Path], str]) -> None:
    """Run the command line of a table or figure: make missing results, then print the table."""

    def main(
        data: DataFolder,
        results: Results,
        vectors: Vectors,
        model: Model = BUNDLED_NAME,
        hours: Hours = math.inf,
        jobs: Jobs = 1,
        option: Options = None,
    ) -> None:
        deadline = time.monotonic() + 3600 * hours
        make_all(Settings(data, results, vectors, model, deadline, option or (), jobs))
        print(write(results))

    typer.run(main)


def make_runs(runs: Iterable[Run], settings: Settings) -> bool:
    """Make the missing runs until the deadline, and report them; return whether all are complete.

    A run that fails does not stop the others.
    """
    folders = {run: run.find_folder(settings.results) for run in runs}
    missing = [run for run, folder in folders.items() if not (folder / "result.json").exists()]
    try_one = partial(try_to_make, settings=settings)
    if settings.jobs == 1:
        return min([try_one(run) for run in missing], default=True)
    spawn = get_context("spawn")  # a fork cannot use a GPU
    pool = ProcessPoolExecutor(settings.jobs, spawn, initializer=start_job)
    try:
        return min(pool.map(try_one, missing), default=True)
    except BrokenProcessPool:
        raise SystemExit("A process was ended. Give the same command again to continue.") from None
    finally:
        pool.shutdown(cancel_futures=True)


def start_job() -> None:
    """Let Ctrl-C end this process, and test models in one thread, as they are trained."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)


def try_to_make(run: Run, settings: Settings) -> bool:
    """Make a run, and report it or its error; return whether it is complete."""
    name = run.find_folder(settings.results).relative_to(settings.results)
    try:
        is_complete = make(run, settings)
    except (FileNotFoundError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"{name} failed: {error}", file=sys.stderr, flush=True)
        return False
    if is_complete:
        print(name, flush=True)
    return is_complete

"""Train each task with and without ELMo, and compare: `python compare.py CORPUS OUTPUT`.

With `--vectors`, ELMo with static vectors is compared with static vectors alone, as in the paper;
the table also shows ELMo alone.
Writes to OUTPUT `table.md` (scores on the test sets), `mix.svg` (each task's learned weights of the
layers) and `curve.svg` (scores against the share of the training data). The result of each finished
run stays in OUTPUT/results, so an interrupted command continues when you run it again; `--draw`
only draws these results. OUTPUT/runs has the pipelines. For your own data in spaCy's format:
`--task mine:ner:train.spacy:dev.spacy:test.spacy`.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import spacy
import typer
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus
from spacy_runs import (
    CURVE_TASK,
    METRICS,
    SHARES,
    TASKS,
    VARIANTS,
    WITH_VECTORS,
    Run,
    Task,
    count,
)
from tables import draw, read_results
from thinc.api import Config
from tqdm import tqdm

from hf_elmo.training.resume_checks import fingerprint

HERE = Path(__file__).parent
# Runs a command, whose output goes to stderr, and prints what it used.
STARTER = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:], stdout=sys.stderr)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(status)
"""
TASK_HELP = (
    "Your own data: NAME:CONFIG:TRAIN:DEV:TEST; repeatable. CONFIG is one of "
    f"{', '.join(METRICS)}, of configs/. The files are .spacy files of `spacy convert` or "
    "make_docs.py, or folders of them, with paths relative to CORPUS."
)


def choose_tasks(tasks: str | None, own: Sequence[str]) -> dict[str, Task]:
    """Choose the named public tasks and the user's own; without either, all public tasks."""
    names = tasks.split(",") if tasks else [] if own else list(TASKS)
    unknown = ", ".join(set(names) - TASKS.keys())
    if unknown:
        raise typer.BadParameter(f"Expected tasks of {', '.join(TASKS)}, got {unknown}.")
    chosen = {name: TASKS[name] for name in names}
    for setting in own:
        name, *parts = setting.split(":")
        if len(parts) != 4 or parts[0] not in METRICS:
            raise typer.BadParameter(
                f"Expected NAME:CONFIG:TRAIN:DEV:TEST, CONFIG one of {', '.join(METRICS)}, got "
                f"{setting}."
            )
        if name in TASKS:
            raise typer.BadParameter(f"Expected another name than the public task {name!r} has.")
        chosen[name] = Task(name, *parts)
    return chosen


def list_runs(
    tasks: Iterable[str], num_seeds: int, *, has_curve: bool, has_vectors: bool
) -> list[Run]:
    """List the runs of all variants, by seed; those of the curve are last."""
    variants = [variant for variant in VARIANTS if has_vectors or variant not in WITH_VECTORS]
    seeds = range(num_seeds)
    runs = [Run(task, variant, seed) for seed in seeds for task in tasks for variant in variants]
    if has_curve:
        runs += [
            Run(CURVE_TASK, variant, seed, share)
            for seed in seeds
            for share in SHARES
            for variant in variants
        ]
    return list(dict.fromkeys(runs))


def list_contents(paths: Sequence[Path]) -> list[str | None]:
    """Describe the content of files and folders, to see later whether it has changed."""
    files = [sorted(path.rglob("*")) if path.is_dir() else [path] for path in paths]
    return [fingerprint(file) for file in chain(*files) if not file.is_dir()]


def has_vectors(folder: Path) -> bool:
    """Return whether a folder is a pipeline with static vectors."""
    try:
        return bool(spacy.load(folder).vocab.vectors.size)
    except OSError:
        return False


def add_vectors(config: Path, vectors: Path) -> list[str]:
    """Return the options of `spacy train` that add static vectors to a configuration."""
    pipeline = Config().from_disk(config, interpolate=False)["nlp"]["pipeline"]
    first = next(name for name in pipeline if name != "elmo")  # the others refer to its tok2vec
    embed = f"--components.{first}.model.tok2vec.embed"
    return ["--paths.vectors", str(vectors), f"{embed}.include_static_vectors", "true"]


def train(
    run: Run,
    task: Task,
    corpus: Path,
    output: Path,
    settings: Sequence[str],
    vectors: Path | None = None,
) -> None:
    """Run `spacy train` in a process with one thread, evaluate, and keep the result."""
    folder = output / "runs" / run.name
    result = output / "results" / f"{run.name}.json"
    config = HERE / "configs" / f"{task.config}{VARIANTS[run.variant]}.cfg"
    added = [vectors] if run.variant in WITH_VECTORS and vectors is not None else []
    train_path = corpus / task.train if run.share == 1 else find_cut(output, run.share)
    made_by = {
        "settings": list(settings),
        "config": config.read_text(encoding="utf-8"),
        "contents": list_contents([train_path, corpus / task.dev, corpus / task.test, *added]),
    }
    if result.is_file() and made_by.items() <= json.loads(result.read_text()).items():
        return
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "spacy", "train", str(config), "--output", str(folder)),
        *("--paths.train", str(train_path), "--paths.dev", str(corpus / task.dev)),
        *("--system.seed", str(run.seed), *settings),
        *chain(*(add_vectors(config, path) for path in added)),
    ]
    costs = run_and_measure(command, folder / "log.txt")
    # In a process of its own, as training is: the other runs are threads of this one.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        test = corpus / task.test
        scores = pool.submit(evaluate, task.config, folder / "model-best", test).result()
    scores |= costs | made_by
    result.parent.mkdir(exist_ok=True)
    part = result.with_suffix(".part")
    part.write_text(json.dumps(scores, separators=(",", ":")))
    part.replace(result)


def run_and_measure(command: Sequence[str], log_path: Path) -> dict[str, float]:
    """Run a command, and return its processor time in seconds and its peak memory in KiB.

    A small process starts it: a child's peak memory includes that of the process that started it.
    """
    with log_path.open("w") as log:
        starter = subprocess.Popen(
            [sys.executable, "-c", STARTER, *command], stdout=subprocess.PIPE, stderr=log, text=True
        )
        measured, _ = starter.communicate()
    if starter.returncode:
        raise RuntimeError(f"spacy train failed: see {log_path}.")
    seconds, kib = measured.split()
    return {"cpu_seconds": float(seconds), "peak_kib": int(kib)}


def cut_corpus(path: Path, output: Path) -> None:
    """Write shares of the docs; a smaller share is a part of each larger one."""
    docs = list(DocBin().from_disk(path).get_docs(spacy.blank("en").vocab))
    random.Random(0).shuffle(docs)
    for share in SHARES[:-1]:
        cut = find_cut(output, share)
        cut.parent.mkdir(parents=True, exist_ok=True)
        DocBin(docs=docs[: round(share * len(docs))], store_user_data=True).to_disk(cut)


def find_cut(output: Path, share: float) -> Path:
    """Return the path of a share of the curve's training data."""
    return output / "shares" / CURVE_TASK / f"{share:g}.spacy"


def evaluate(config: str, pipeline: Path, test: Path) -> dict[str, Any]:
    """Count each doc's facts: correct, found and gold; collect the learned mixes."""
    from spacy_elmo.mix_report import collect_mixes

    nlp = spacy.load(pipeline)
    gold = read_gold(test, nlp)
    found = list(nlp.pipe(Doc(nlp.vocab, words=[token.text for token in doc]) for doc in gold))
    counts = {
        metric: [count(find, a, b) for a, b in zip(found, gold, strict=True)]
        for metric, find in METRICS[config].items()
    }
    return {"counts": counts, "mixes": [mix._asdict() for mix in collect_mixes(nlp)]}


def read_gold(path: Path, nlp: Language) -> list[Doc]:
    """Read the docs of a file, or of all files of a folder: at least two, for the intervals."""
    gold = [example.reference for example in Corpus(path)(nlp)]
    if len(gold) < 2:
        raise ValueError(
            f"Expected two or more docs in {path}, a .spacy file or a folder of them, "
            f"got {len(gold)}."
        )
    return gold


def main(
    corpus: Annotated[Path, typer.Argument(help="Folder that make_docs.py has written.")],
    output: Annotated[Path, typer.Argument(help="Folder for runs, table and plots.")],
    tasks: Annotated[
        str | None, typer.Option(help=f"Only these, with commas: {', '.join(TASKS)}.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help=TASK_HELP)] = None,
    seeds: Annotated[int, typer.Option(help="Number of runs of each kind.", min=1)] = 3,
    jobs: Annotated[int, typer.Option(help="Parallel runs, with one thread each.", min=1)] = 2,
    curve: Annotated[
        bool, typer.Option(help=f"Also make the learning curve of {CURVE_TASK}.")
    ] = True,
    vectors: Annotated[
        Path | None,
        typer.Option(
            help="Also train with these static vectors: a folder of `spacy init vectors`."
        ),
    ] = None,
    settings: Annotated[
        str, typer.Option(help='Options of all runs, such as "--training.max_steps 10".')
    ] = "",
    draw_only: Annotated[
        bool, typer.Option("--draw", help="Train nothing: draw the results that are there.")
    ] = False,
) -> None:
    """Train each task with and without ELMo, and compare."""
    chosen = choose_tasks(tasks, task or [])
    curves = curve and CURVE_TASK in chosen
    runs = list_runs(chosen, seeds, has_curve=curves, has_vectors=bool(vectors or draw_only))
    if not draw_only:
        if vectors is not None and not has_vectors(vectors):
            raise typer.BadParameter(f"Expected a folder of `spacy init vectors`, got {vectors}.")
        for one in chosen.values():  # before hours of training
            read_gold(corpus / one.test, spacy.blank("en"))
        if curves:
            cut_corpus(corpus / CURVE_TASK / "train.spacy", output)  # once, for all runs
        os.environ["OMP_NUM_THREADS"] = "1"
        options = {"settings": settings.split(), "vectors": vectors}
        train_one = partial(train, corpus=corpus, output=output, **options)
        with ThreadPoolExecutor(jobs) as pool:
            trained = pool.map(train_one, runs, [chosen[run.task] for run in runs])
            for _ in tqdm(trained, total=len(runs), unit="run"):
                pass
    print(draw(read_results(output / "results", runs), chosen, output))


if __name__ == "__main__":
    typer.run(main)

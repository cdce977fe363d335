"""Train each task with and without ELMo, and compare: `python compare.py CORPUS OUTPUT`.

With `--vectors`, ELMo with static vectors is compared with static vectors alone, as in the paper;
the table also shows ELMo alone.
Writes to OUTPUT `table.md` (scores on the test sets), `mix.svg` (each task's learned weights of the
layers) and `curve.svg` (scores against the share of the training data). Finished runs stay in
OUTPUT/runs, so an interrupted command continues when you run it again. For your own data in spaCy's
format: `--task mine:ner:train.spacy:dev.spacy:test.spacy`.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from statistics import stdev
from typing import Annotated, Any, NamedTuple

import numpy as np
import spacy
import typer
from matplotlib.figure import Figure
from scipy.stats import bootstrap
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus
from thinc.api import Config
from tqdm import tqdm

from hf_elmo.training.resume_checks import fingerprint

HERE = Path(__file__).parent
# Variants with the end of their configuration's name.
VARIANTS = {"without": "", "static": "", "with": "_elmo", "both": "_elmo"}
LABELS = {
    "without": "no vectors",
    "static": "static vectors",
    "with": "ELMo",
    "both": "static vectors and ELMo",
}
WITH_VECTORS = ("static", "both")
# Pairs that are compared: the last one whose runs are there.
PAIRS = (("without", "with"), ("static", "with"), ("static", "both"))
SHARES = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
CURVE_TASK = "trec"
RESAMPLES = 10_000
# In matplotlib's SVG, white paths are the background, and text without a style is black.
DARK_LOOK = """<style>
@media (prefers-color-scheme: dark) {
  path[style^="fill: #ffffff"] { fill: #131416 !important; }
  [style*="stroke: #000000"] { stroke: #c9d1d9 !important; }
  g[id^="text"] > g:not([style]) { fill: #e6edf3; }
}
</style>"""

Facts = set[tuple[Any, ...]]


def find_tags(doc: Doc) -> Facts:
    return {(token.i, token.tag_) for token in doc}


def find_morphs(doc: Doc) -> Facts:
    return {(token.i, str(token.morph)) for token in doc}


def find_lemmas(doc: Doc) -> Facts:
    return {(token.i, token.lemma_) for token in doc}


def find_arcs(doc: Doc) -> Facts:
    """Find all dependency arcs except punctuation, like spaCy's scorer."""
    return {(t.i, t.head.i, t.dep_.lower()) for t in doc if t.dep_.lower() not in ("p", "punct")}


def find_heads(doc: Doc) -> Facts:
    return {(child, head) for child, head, _ in find_arcs(doc)}


def find_sentences(doc: Doc) -> Facts:
    return {(span.start, span.end) for span in doc.sents}


def find_entities(doc: Doc) -> Facts:
    return {(span.start, span.end, span.label_) for span in doc.ents}


def find_spans(doc: Doc) -> Facts:
    return {(span.start, span.end, span.label_) for span in doc.spans.get("sc", ())}


def find_category(doc: Doc) -> Facts:
    return {(max(doc.cats, key=doc.cats.__getitem__),)}


# Facts that each metric of a configuration compares. If each token or doc has exactly one fact,
# such as a tag, F1 equals accuracy.
METRICS: dict[str, dict[str, Callable[[Doc], Facts]]] = {
    "ewt": {"tag accuracy": find_tags, "lemma accuracy": find_lemmas, "LAS": find_arcs},
    "ner": {"entity F1": find_entities},
    "textcat": {"accuracy": find_category},
    "spancat": {"span F1": find_spans},
    "english": {
        "tag accuracy": find_tags,
        "morphology accuracy": find_morphs,
        "lemma accuracy": find_lemmas,
        "UAS": find_heads,
        "LAS": find_arcs,
        "F1 of sentences": find_sentences,
        "entity F1": find_entities,
    },
}
# A gold doc without this attribute is not counted: a joined corpus has docs of several tasks.
ATTRIBUTES: dict[Callable[[Doc], Facts], str] = {
    find_tags: "TAG",
    find_morphs: "MORPH",
    find_lemmas: "LEMMA",
    find_heads: "DEP",
    find_arcs: "DEP",
    find_sentences: "DEP",
    find_entities: "ENT_IOB",
}


class Task(NamedTuple):
    """A task: its title, its configuration, and its files relative to CORPUS."""

    title: str
    config: str
    train: str
    dev: str
    test: str


def _task(name: str, title: str, config: str) -> Task:
    return Task(title, config, *(f"{name}/{split}.spacy" for split in ("train", "dev", "test")))


TASKS = {
    "ewt": _task("ewt", "UD English EWT", "ewt"),
    "wnut17": _task("wnut17", "WNUT-17", "ner"),
    "wikigold": _task("wikigold", "WikiGold", "ner"),
    "sst5": _task("sst5", "SST-5", "textcat"),
    "trec": _task("trec", "TREC, 6 classes", "textcat"),
    "litbank": _task("litbank", "LitBank, nested", "spancat"),
}
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
        chosen[name] = Task(name, *parts)
    return chosen


class Run(NamedTuple):
    """One training run."""

    task: str
    variant: str
    seed: int
    share: float = 1.0

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.task}-{self.variant}-{self.seed}-{self.share:g}"


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
    result = folder / "result.json"
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
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"spacy train failed: see {folder / 'log.txt'}.")
    # In a new process: this process's memory would count as its next child's peak memory.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        test = corpus / task.test
        scores = pool.submit(evaluate, task.config, folder / "model-best", test).result()
    scores |= {
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_kib": usage.ru_maxrss,
    } | made_by
    part = result.with_suffix(".part")
    part.write_text(json.dumps(scores))
    part.replace(result)


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
    """Read the docs of a file, or of all files of a folder."""
    gold = [example.reference for example in Corpus(path)(nlp)]
    if not gold:
        raise ValueError(f"No docs in {path}: expected a .spacy file, or a folder of them.")
    return gold


def count(find: Callable[[Doc], Facts], found: Doc, gold: Doc) -> tuple[int, int, int]:
    """Count the correct, found and gold facts of a doc; none without a gold annotation."""
    if find in ATTRIBUTES and not gold.has_annotation(ATTRIBUTES[find]):
        return 0, 0, 0
    a, b = find(found), find(gold)
    return len(a & b), len(a), len(b)


def compute_f1(right: Any, found: Any, gold: Any, axis: int = -1) -> Any:
    return 2 * right.sum(axis) / np.maximum(found.sum(axis) + gold.sum(axis), 1)


class Comparison(NamedTuple):
    """Scores of one metric in percent, by variant and seed, and the bootstrap of a difference."""

    scores: dict[str, list[float]]
    pair: tuple[str, str]  # the difference is that of the second minus the first
    low: float  # of the 95 % interval of the difference
    high: float
    p: float  # two-sided


def compare(results: dict[Run, dict[str, Any]], task: str, metric: str) -> Comparison:
    """Compare by a paired bootstrap over the docs of the test set, with the seeds' counts added."""
    counts = {
        variant: np.array(
            [
                result["counts"][metric]
                for run, result in results.items()
                if (run.task, run.variant, run.share) == (task, variant, 1)
            ]
        )  # (seeds, docs, 3)
        for variant in find_variants(results)
    }
    scores = {
        variant: [100 * float(compute_f1(*seed.T)) for seed in values]
        for variant, values in counts.items()
    }
    pair = find_pair(counts)
    before, after = (counts[variant].sum(0).T for variant in pair)  # (3, docs)

    def difference(*columns: Any, axis: int = -1) -> Any:
        return 100 * (compute_f1(*columns[3:], axis) - compute_f1(*columns[:3], axis))

    result = bootstrap(
        (*before, *after),
        difference,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=100,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    drawn = result.bootstrap_distribution
    fewer = min((drawn <= 0).sum(), (drawn >= 0).sum())
    return Comparison(
        scores, pair, *result.confidence_interval, min(1.0, 2 * (1 + fewer) / (1 + RESAMPLES))
    )


def find_variants(results: dict[Run, dict[str, Any]]) -> list[str]:
    """List the variants that have runs."""
    return [variant for variant in VARIANTS if any(run.variant == variant for run in results)]


def find_pair(variants: Collection[str]) -> tuple[str, str]:
    """Find the two variants that are compared."""
    return [pair for pair in PAIRS if set(pair) <= set(variants)][-1]


def draw_table(results: dict[Run, dict[str, Any]], tasks: dict[str, Task]) -> Iterator[str]:
    """Make the table of scores in Markdown."""
    variants = find_variants(results)
    titles = [LABELS[variant] for variant in variants]
    before, after = map(LABELS.__getitem__, find_pair(variants))
    titles += [f"{after} minus {before}, 95 %", "error", "p"]
    yield f"| task | metric | seeds | {' | '.join(titles)} |"
    yield "|---" * (3 + len(titles)) + "|"
    for name, task in tasks.items():
        for metric in METRICS[task.config]:
            result = compare(results, name, metric)
            before, after = (np.mean(result.scores[variant]) for variant in result.pair)
            cells = [str(len(result.scores["with"])), *map(_spread, result.scores.values())]
            yield (
                f"| {task.title} | {metric} | {' | '.join(cells)} "
                f"| {after - before:+.1f} ({result.low:+.1f} to {result.high:+.1f}) "
                f"| {100 * (before - after) / (100 - before):+z.0f} % | {result.p:.4f} |"
            )


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def draw_costs(results: dict[Run, dict[str, Any]], tasks: dict[str, Task]) -> Iterator[str]:
    """Make the table of costs: the lowest of all seeds, since other programs only add time."""
    variants = find_variants(results)
    titles = [f"{what}: {LABELS[x]}" for what in ("CPU seconds", "peak MiB") for x in variants]
    yield f"| task | {' | '.join(titles)} |"
    yield "|---" * (1 + len(titles)) + "|"
    for name, task in tasks.items():
        cells = [
            min(r[key] / unit for run, r in results.items() if run[:2] == (name, variant))
            for key, unit in (("cpu_seconds", 1), ("peak_kib", 1024))
            for variant in variants
        ]
        yield f"| {task.title} | {' | '.join(f'{cell:,.0f}' for cell in cells)} |"


def plot_mix(results: dict[Run, dict[str, Any]], tasks: Sequence[str], path: Path) -> None:
    """Draw each task's mix, the mean over its seeds, like figure 2 of Peters et al. 2018."""
    from spacy_elmo.mix_report import MixOfComponent, plot_mixes

    mixes = []
    for task in tasks:
        runs = [r["mixes"] for run, r in results.items() if run[:2] == (task, "with")]
        for same in zip(*runs, strict=True):
            name = f"{task}\n{same[0]['component']}"
            shares = np.mean([mix["shares"] for mix in same], axis=0).tolist()
            gamma = float(np.mean([mix["gamma"] for mix in same]))
            mixes.append(MixOfComponent(name, same[0]["position"], shares, gamma))
    plot_mixes(mixes, path)


def compute_curve(results: dict[Run, dict[str, Any]], variant: str) -> list[tuple[float, float]]:
    """Return the mean score of the seeds in percent, and their deviation, for each of `SHARES`."""
    (metric,) = METRICS[TASKS[CURVE_TASK].config]
    points = []
    for share in SHARES:
        scores = [
            100 * compute_f1(*np.array(result["counts"][metric]).T)
            for run, result in results.items()
            if (run.task, run.variant, run.share) == (CURVE_TASK, variant, share)
        ]
        points.append((np.mean(scores), np.std(scores, ddof=1) if len(scores) > 1 else 0.0))
    return points


def plot_curve(results: dict[Run, dict[str, Any]], path: Path) -> None:
    """Draw scores against the share of the training data, like figure 1 of Peters et al. 2018."""
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.add_subplot()
    (metric,) = METRICS[TASKS[CURVE_TASK].config]
    ticks = [100 * share for share in SHARES]
    for variant in find_variants(results):
        means, spreads = zip(*compute_curve(results, variant), strict=True)
        axes.errorbar(ticks, means, spreads, marker="o", capsize=3, label=LABELS[variant])
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("share of the training data (%)")
    axes.set_ylabel(f"{TASKS[CURVE_TASK].title}: {metric} (%)")
    axes.legend()
    figure.savefig(path)


def add_dark_look(path: Path) -> None:
    """Adapt a plot of matplotlib to dark mode."""
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("</defs>", f"</defs>{DARK_LOOK}", 1), encoding="utf-8")


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
) -> None:
    """Train each task with and without ELMo, and compare."""
    chosen = choose_tasks(tasks, task or [])
    if vectors is not None and not has_vectors(vectors):
        raise typer.BadParameter(f"Expected a folder of `spacy init vectors`, got {vectors}.")
    for one in chosen.values():  # before hours of training
        read_gold(corpus / one.test, spacy.blank("en"))
    variants = [variant for variant in VARIANTS if vectors or variant not in WITH_VECTORS]
    runs = [Run(t, v, s) for s in range(seeds) for t in chosen for v in variants]
    if curve and CURVE_TASK in chosen:
        runs += [
            Run(CURVE_TASK, v, s, share) for s in range(seeds) for share in SHARES for v in variants
        ]
        cut_corpus(corpus / CURVE_TASK / "train.spacy", output)  # once, before two runs need it
    runs = list(dict.fromkeys(runs))
    os.environ["OMP_NUM_THREADS"] = "1"
    options = {"settings": settings.split(), "vectors": vectors}
    train_one = partial(train, corpus=corpus, output=output, **options)
    with ThreadPoolExecutor(jobs) as pool:
        trained = pool.map(train_one, runs, [chosen[run.task] for run in runs])
        for _ in tqdm(trained, total=len(runs), unit="run"):
            pass
    results = {
        run: json.loads((output / "runs" / run.name / "result.json").read_text()) for run in runs
    }
    full = {run: result for run, result in results.items() if run.share == 1}
    lines = [*draw_table(full, chosen), "", *draw_costs(full, chosen)]
    (output / "table.md").write_text("\n".join(lines) + "\n")
    plot_mix(full, list(chosen), output / "mix.svg")
    add_dark_look(output / "mix.svg")
    if curve and CURVE_TASK in chosen:
        plot_curve(results, output / "curve.svg")
        add_dark_look(output / "curve.svg")
    print("\n".join(lines))


if __name__ == "__main__":
    typer.run(main)

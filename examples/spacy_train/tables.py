"""Tables and plots of results: scores with intervals, costs, learned mixes, a learning curve."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import stdev
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import bootstrap
from spacy_runs import CURVE_TASK, LABELS, METRICS, PAIRS, SHARES, TASKS, VARIANTS, Run, Task

RESAMPLES = 10_000
# In matplotlib's SVG, white paths are the background, and text without a style is black.
DARK_LOOK = """<style>
@media (prefers-color-scheme: dark) {
  path[style^="fill: #ffffff"] { fill: #131416 !important; }
  [style*="stroke: #000000"] { stroke: #c9d1d9 !important; }
  g[id^="text"] > g:not([style]) { fill: #e6edf3; }
}
</style>"""

Results = dict[Run, dict[str, Any]]


def read_results(folder: Path, runs: Iterable[Run]) -> Results:
    """Read the results of the runs that are finished."""
    paths = {run: folder / f"{run.name}.json" for run in runs}
    return {run: json.loads(path.read_text()) for run, path in paths.items() if path.is_file()}


def compute_f1(counts: Any) -> Any:
    """Compute F1 from numbers of correct, found and gold facts, shape `(..., 3)`."""
    return 2 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1)


class Comparison(NamedTuple):
    """Scores of one metric in percent, by variant and seed, and the bootstrap of a difference."""

    scores: dict[str, list[float]]
    pair: tuple[str, str]  # the difference is that of the second minus the first
    low: float  # of the 95 % interval of the difference
    high: float
    p: float  # two-sided


def compare(results: Results, task: str, metric: str) -> Comparison:
    """Compare by a bootstrap over the docs of the test set and over the seeds.

    Each resample draws docs, and seeds if there are several, for both variants together: the
    multi-bootstrap of Sellam et al. (2022), section 3, with paired seeds.
    """
    seeds = list_seeds(results, task)
    common = sorted(set.intersection(*seeds.values()))
    counts = {
        variant: np.array(
            [results[Run(task, variant, seed)]["counts"][metric] for seed in common]
        )  # (seeds, docs, 3)
        for variant in seeds
    }
    scores = {
        variant: (100 * compute_f1(values.sum(1))).tolist() for variant, values in counts.items()
    }
    pair = find_pair(counts)
    before, after = (counts[variant] for variant in pair)
    num_seeds, num_docs = before.shape[:2]

    def gain(docs: Any, drawn_seeds: Any = None, axis: int = -1) -> Any:
        f1_before, f1_after = (compute_f1(side[:, docs].sum(-2)) for side in (before, after))
        gains = 100 * np.moveaxis(f1_after - f1_before, 0, -1)  # (..., seeds)
        if drawn_seeds is not None:
            gains = np.take_along_axis(gains, drawn_seeds, axis)
        return gains.mean(axis)

    places = np.arange(num_docs), np.arange(num_seeds)
    result = bootstrap(
        places if num_seeds > 1 else places[:1],
        gain,
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


def list_seeds(results: Results, task: str) -> dict[str, set[int]]:
    """List the seeds of each variant of a task that has runs with all training data."""
    seeds = {
        variant: {run.seed for run in results if run[:2] == (task, variant) and run.share == 1}
        for variant in VARIANTS
    }
    return {variant: numbers for variant, numbers in seeds.items() if numbers}


def can_compare(results: Results, task: str) -> bool:
    """Return whether a task has both variants of a pair, and a seed that all its variants have."""
    seeds = list_seeds(results, task)
    has_pair = any(set(pair) <= seeds.keys() for pair in PAIRS)
    return has_pair and bool(set.intersection(*seeds.values()))


def find_variants(results: Results) -> list[str]:
    """List the variants that have runs."""
    return [variant for variant in VARIANTS if any(run.variant == variant for run in results)]


def find_pair(variants: Collection[str]) -> tuple[str, str]:
    """Find the two variants that are compared."""
    return [pair for pair in PAIRS if set(pair) <= set(variants)][-1]


def draw(results: Results, tasks: dict[str, Task], output: Path) -> str:
    """Write `table.md` and the plots of all tasks that can be compared; return the tables."""
    full = {run: result for run, result in results.items() if run.share == 1}
    done = {name: task for name, task in tasks.items() if can_compare(full, name)}
    if not done:
        return "No task has finished runs with and without ELMo."
    text = "\n".join([*draw_table(full, done), "", *draw_costs(full, done)])
    (output / "table.md").write_text(text + "\n", encoding="utf-8")
    plot_mix(full, list(done), output / "mix.svg")
    if CURVE_TASK in done and len(results) > len(full):
        plot_curve(results, output / "curve.svg")
    return text


def draw_table(results: Results, tasks: dict[str, Task]) -> Iterator[str]:
    """Make the table of scores in Markdown."""
    variants = find_variants(results)
    usual = _name_pair(find_pair(variants))
    titles = [*(LABELS[variant] for variant in variants), f"{usual}, 95 %", "error", "p"]
    yield f"| task | metric | seeds | {' | '.join(titles)} |"
    yield "|---" * (3 + len(titles)) + "|"
    for name, task in tasks.items():
        for metric in METRICS[task.config]:
            result = compare(results, name, metric)
            before, after = (np.mean(result.scores[variant]) for variant in result.pair)
            cells = [_spread(result.scores.get(variant, [])) for variant in variants]
            pair = _name_pair(result.pair)
            yield (
                f"| {task.title} | {metric} | {len(result.scores[result.pair[0]])} "
                f"| {' | '.join(cells)} | {'' if pair == usual else f'{pair}: '}"
                f"{after - before:+.1f} ({result.low:+.1f} to {result.high:+.1f}) "
                f"| {100 * (before - after) / (100 - before):+z.0f} % | {result.p:.4f} |"
            )


def _name_pair(pair: tuple[str, str]) -> str:
    return f"{LABELS[pair[1]]} minus {LABELS[pair[0]]}"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "not run yet"
    return f"{np.mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def draw_costs(results: Results, tasks: dict[str, Task]) -> Iterator[str]:
    """Make the table of costs: the lowest of all seeds, since other programs only add time."""
    variants = find_variants(results)
    titles = [f"{what}: {LABELS[x]}" for what in ("CPU seconds", "peak MiB") for x in variants]
    yield f"| task | {' | '.join(titles)} |"
    yield "|---" * (1 + len(titles)) + "|"
    for name, task in tasks.items():
        cells = [
            min(
                (r[key] / unit for run, r in results.items() if run[:2] == (name, variant)),
                default=0,
            )
            for key, unit in (("cpu_seconds", 1), ("peak_kib", 1024))
            for variant in variants
        ]
        yield f"| {task.title} | {' | '.join(f'{x:,.0f}' if x else '' for x in cells)} |"


def plot_mix(results: Results, tasks: Sequence[str], path: Path) -> None:
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
    if mixes:  # none without runs of ELMo alone
        plot_mixes(mixes, path)
        add_dark_look(path)


def compute_curve(results: Results, variant: str) -> list[tuple[float, float, float]]:
    """Return the shares of the training data, the seeds' mean scores and deviations; in percent."""
    (metric,) = METRICS[TASKS[CURVE_TASK].config]
    points = []
    for share in SHARES:
        scores = [
            100 * compute_f1(np.sum(result["counts"][metric], axis=0))
            for run, result in results.items()
            if (run.task, run.variant, run.share) == (CURVE_TASK, variant, share)
        ]
        if scores:
            spread = stdev(scores) if len(scores) > 1 else 0.0
            points.append((100 * share, float(np.mean(scores)), spread))
    return points


def plot_curve(results: Results, path: Path) -> None:
    """Draw scores against the share of the training data, like figure 1 of Peters et al. 2018."""
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.add_subplot()
    (metric,) = METRICS[TASKS[CURVE_TASK].config]
    ticks = [100 * share for share in SHARES]
    for variant in find_variants(results):
        if points := compute_curve(results, variant):
            axes.errorbar(*zip(*points, strict=True), marker="o", capsize=3, label=LABELS[variant])
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("share of the training data (%)")
    axes.set_ylabel(f"{TASKS[CURVE_TASK].title}: {metric} (%)")
    axes.legend()
    figure.savefig(path)
    add_dark_look(path)


def add_dark_look(path: Path) -> None:
    """Adapt a plot of matplotlib to dark mode."""
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("</defs>", f"</defs>{DARK_LOOK}", 1), encoding="utf-8")

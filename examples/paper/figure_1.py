"""Figure 1: scores against the share of the training data, with ELMo and without.

python examples/paper/figure_1.py DATA RESULTS --vectors vectors.bin
"""

from functools import partial
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure
from runs import (
    LABELS,
    SIDES,
    TITLES,
    Run,
    gather_counts,
    list_runs,
    make_runs,
    read_runs,
    save_figure,
    score,
    serve,
    show_interval,
    show_scores,
    write_table,
)

SHARES = (0.001, 0.01, 0.1, 1.0)
TASKS = {"entailment": SHARES, "srl": SHARES, "sentiment": (0.01, 0.1, 1.0)}
ALT = "Test scores over the share of the training data, with ELMo and without"
INTERVAL = "95 % interval of the difference"
HEADER = ("task", "input", *(f"{100 * share:g} %" for share in SHARES))


def list_task(task: str) -> list[Run]:
    """List the runs of a task."""
    return [run for share in TASKS[task] for run in list_runs(task, SIDES, share)]


RUNS = [run for task in TASKS for run in list_task(task)]


def read_curve(results: Path, task: str, config: str) -> dict[float, list[float]]:
    """Read the test scores of each share of the training data, one per seed."""
    runs = {share: read_runs(results, task, config, share) for share in TASKS[task]}
    return {
        share: [score(task, seed) for seed in gather_counts(seeds)]
        for share, seeds in runs.items()
        if seeds
    }


def plot(results: Path, path: Path) -> None:
    """Draw the curves, if any run is complete; bands reach from the lowest to the highest seed."""
    if not any(read_curve(results, task, config) for task in TASKS for config in SIDES):
        return
    figure = Figure(figsize=(12, 4), layout="constrained")
    for panel, task in zip(figure.subplots(1, len(TASKS)), TASKS, strict=True):
        for config, label, style in zip(SIDES, LABELS, ("s--", "o-"), strict=True):
            curve = read_curve(results, task, config)
            if not curve:
                continue
            shares = [100 * share for share in curve]
            (line,) = panel.plot(shares, list(map(mean, curve.values())), style, label=label)
            bounds = [list(map(bound, curve.values())) for bound in (min, max)]
            panel.fill_between(shares, *bounds, color=line.get_color(), alpha=0.2)
        panel.set_xscale("log")
        ticks = [100 * share for share in TASKS[task]]
        panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        panel.minorticks_off()
        panel.set(title=TITLES[task], xlabel="share of the training data (%)")
        panel.grid(alpha=0.3)
        if panel.lines:
            panel.legend(framealpha=0)
    figure.axes[0].set_ylabel("test score (%)")
    save_figure(figure, path)


def show_difference(results: Path, task: str, share: float) -> str:
    """Format the interval of the difference, over the seeds that both sides have."""
    sides = [read_runs(results, task, config, share) for config in SIDES]
    if share not in TASKS[task] or not all(sides):
        return ""
    return show_interval(partial(score, task), *map(gather_counts, sides))


def write(results: Path) -> str:
    """Format the scores of the figure as a table."""
    rows = []
    for task in TASKS:
        for config in SIDES:
            curve = read_curve(results, task, config)
            missing = dict.fromkeys(TASKS[task], "not run yet")
            cells = [show_scores(curve[x]) if x in curve else missing.get(x, "") for x in SHARES]
            rows.append([TITLES[task], config, *cells])
        rows.append([TITLES[task], INTERVAL, *(show_difference(results, task, x) for x in SHARES)])
    return write_table(HEADER, rows)


if __name__ == "__main__":
    serve(partial(make_runs, RUNS), write)

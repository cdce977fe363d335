"""Table 1: the six tasks with ELMo and without.

python examples/paper/table_1.py DATA RESULTS --vectors vectors.bin
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure
from runs import (
    DATA,
    LABELS,
    NARROW,
    SIDES,
    TITLES,
    choose_epochs,
    compare,
    gather_counts,
    list_runs,
    make_runs,
    read_runs,
    reduce_error,
    save_figure,
    score,
    serve,
    show_scores,
    write_table,
)

from hf_elmo.tasks import TASKS

HEADER = (
    *("task", "metric", "seeds", "static", "ELMo"),
    *("95 % interval of the difference", "p", "error reduction"),
    *("paper: static", "paper: ELMo", "paper: error reduction"),
    *("epochs: static", "epochs: ELMo", "CPU minutes: static", "CPU minutes: ELMo"),
)
ALT = "Test scores of the tasks: each run without ELMo as a square, each run with it as a circle"
NARROW_TITLE = "With static vectors of 100 dimensions on both sides, and mostly fewer epochs:"
RUNS = [
    run
    for width in ("", NARROW)
    for task in DATA
    for run in list_runs(task, [side + width for side in SIDES])
]


def read_sides(results: Path, task: str, width: str = "") -> list[list[Any]]:
    """Read the runs without and with ELMo, for the seeds that both have.

    Args:
        results: Folder of all runs.
        task: Name of the task.
        width: End of the names of configurations: nothing or `NARROW`.
    """
    sides = [read_runs(results, task, name + width) for name in SIDES]
    return [side[: min(map(len, sides))] for side in sides]


def write_row(task: str, width: str, sides: list[list[Any]]) -> list[str]:
    """Format the row of a task and a width, without their names."""
    counts = [gather_counts(side) for side in sides]
    scores = [[score(task, seed) for seed in side] for side in counts]
    low, high, p = compare(partial(score, task), *counts)
    paper = DATA[task].paper
    runs = [list(chain(*side)) for side in sides]
    return [
        *(str(len(sides[0])), *map(show_scores, scores)),
        *(f"{low:+.1f} to {high:+.1f}", f"{p:.3f}"),
        f"{reduce_error(*map(mean, scores)):.1f} %",
        *(f"{number:.1f}" for number in paper),
        f"{reduce_error(*paper):.1f} %",
        *(str(choose_epochs(task, side + width)) for side in SIDES),
        *map(show_minutes, runs),
    ]


def show_minutes(runs: list[Any]) -> str:
    """Format the mean time of the runs on a CPU."""
    minutes = [run["minutes"] for run in runs if run.get("device", "cpu") == "cpu"]
    return f"{mean(minutes):.0f}" if minutes else ""


def plot(results: Path, path: Path) -> None:
    """Draw the score of each run, a row for each task; without a complete row, draw nothing."""
    sides = {task: read_sides(results, task) for task in DATA}
    tasks = [task for task in DATA if sides[task][0]]
    if not tasks:
        return
    figure = Figure(figsize=(9, 0.6 + 0.5 * len(tasks)), layout="constrained")
    axes = figure.add_subplot()
    for number, style in enumerate(("s", "o")):
        points = [
            (score(task, seed), row)
            for row, task in enumerate(tasks)
            for seed in gather_counts(sides[task][number])
        ]
        axes.plot(*zip(*points, strict=True), style, label=LABELS[number], alpha=0.6)
    axes.set_yticks(range(len(tasks)), [f"{TITLES[x]}, {TASKS[x].metric}" for x in tasks])
    axes.invert_yaxis()
    axes.set_xlabel("test score (%)")
    axes.grid(alpha=0.3)
    axes.legend(framealpha=0)
    save_figure(figure, path)


def write_rows(results: Path, width: str = "") -> Iterator[list[str]]:
    """Format the rows of all tasks."""
    for task in DATA:
        row = [TITLES[task], TASKS[task].metric]
        sides = read_sides(results, task, width)
        if sides[0]:
            yield [*row, *write_row(task, width, sides)]
        else:
            yield [*row, "not run yet", *[""] * (len(HEADER) - len(row) - 1)]


def write(results: Path) -> str:
    """Format the table, and the one with narrow static vectors."""
    wide, narrow = (write_table(HEADER, write_rows(results, width)) for width in ("", NARROW))
    return f"{wide}\n\n{NARROW_TITLE}\n\n{narrow}"


if __name__ == "__main__":
    serve(partial(make_runs, RUNS), write)

"""Table 1: the six tasks with ELMo and without, both trained until they stop improving.

python examples/paper/table_1.py DATA RESULTS --vectors vectors.bin
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from runs import (
    DATA,
    SIDES,
    TITLES,
    compare,
    gather_counts,
    list_runs,
    make_runs,
    read_runs,
    reduce_error,
    score,
    serve,
    show_scores,
    write_table,
)

from hf_elmo.tasks import TASKS

HEADER = (
    *("task", "metric", "seeds", "static", "ELMo", "95 % interval of the difference", "p"),
    *("relative error", "paper: static", "paper: ELMo", "paper: relative error"),
    *("epochs: static", "epochs: ELMo", "CPU minutes: static", "CPU minutes: ELMo"),
)
# The shortest runs (entities) come first, so that a row is complete early.
RUNS = [run for task in ("ner", *DATA) for run in list_runs(task, SIDES)]


def read_sides(results: Path, task: str) -> list[list[Any]]:
    """Read the runs without and with ELMo, for the seeds that both have."""
    sides = [read_runs(results, task, config) for config in SIDES]
    return [side[: min(map(len, sides))] for side in sides]


def write_row(task: str, sides: list[list[Any]]) -> list[str]:
    """Format the row of a task."""
    counts = [gather_counts(side) for side in sides]
    scores = [[score(task, seed) for seed in side] for side in counts]
    low, high, p = compare(partial(score, task), *counts)
    paper = DATA[task].paper
    runs = [list(chain(*side)) for side in sides]
    return [
        *(TITLES[task], TASKS[task].metric, str(len(sides[0])), *map(show_scores, scores)),
        *(f"{low:+.1f} to {high:+.1f}", f"{p:.3f}"),
        f"{reduce_error(*map(mean, scores)):.1f} %",
        *(f"{number:.1f}" for number in paper),
        f"{reduce_error(*paper):.1f} %",
        *(f"{mean(len(one.get('curve', ())) for one in side):.0f}" for side in runs),
        *(f"{mean(one['minutes'] for one in side):.0f}" for side in runs),
    ]


def write_rows(results: Path) -> Iterator[list[str]]:
    """Format the rows of all tasks."""
    for task in DATA:
        sides = read_sides(results, task)
        if sides[0]:
            yield write_row(task, sides)
        else:
            yield [TITLES[task], TASKS[task].metric, "not run yet", *[""] * (len(HEADER) - 3)]


def write(results: Path) -> str:
    """Format the table."""
    return write_table(HEADER, write_rows(results))


if __name__ == "__main__":
    serve(partial(make_runs, RUNS), write)

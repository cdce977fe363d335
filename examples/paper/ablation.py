"""Rows of Tables 2, 3 and 7: configurations of a task, compared with the configuration `elmo`."""

from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from runs import (
    GRID,
    TITLES,
    Run,
    gather_counts,
    list_runs,
    read_runs,
    score,
    show_interval,
    show_scores,
    write_table,
)


class Row(NamedTuple):
    """A row of Tables 2, 3 and 7.

    Attributes:
        task: Name of the task.
        title: Name of the configuration in the table.
        config: Name in `CONFIGS`.
        paper: The paper's dev score in percent; None = not in the paper.
    """

    task: str
    title: str
    config: str
    paper: float | None


def make_rows(titles: dict[str, str], paper: dict[str, tuple[float, ...]]) -> list[Row]:
    """Make a row for each task and configuration.

    Args:
        titles: Titles by the names of configurations.
        paper: The paper's dev scores by task, in the order of `titles`.
    """
    return [
        Row(task, title, config, number)
        for task, numbers in paper.items()
        for (config, title), number in zip(titles.items(), numbers, strict=True)
    ]


def write_ablation(rows: Iterable[Row], results: Path) -> str:
    """Format Table 2, 3 or 7: scores, and differences from `elmo` on the test set."""
    cells = []
    for task, title, config, paper in rows:
        seeds, full = (read_runs(results, task, name, GRID[task]) for name in (config, "elmo"))
        dev = test = difference = "not run yet"
        if seeds:
            counts = gather_counts(seeds)
            dev = show_scores([100 * max(one["curve"]) for one in chain(*seeds)])
            test = show_scores([score(task, seed) for seed in counts])
        if config == "elmo":
            difference = ""
        elif seeds and full:
            difference = show_interval(partial(score, task), gather_counts(full), counts)
        known = "" if paper is None else f"{paper:.1f}"
        cells.append([TITLES[task], title, str(len(seeds)), dev, test, difference, known])
    return write_table(ABLATION_HEADER, cells)


ABLATION_HEADER = (
    *("task", "input", "seeds", "dev", "test", "test: 95 % interval of the difference to *"),
    "paper: dev",
)


def list_ablation(rows: Iterable[Row]) -> list[Run]:
    """List the runs of Table 2, 3 or 7, task by task."""
    return [run for row in rows for run in list_runs(row.task, [row.config], GRID[row.task])]

"""Figure 2: learned weights of the biLM's layers, for each task at input and output.

python examples/paper/figure_2.py DATA RESULTS --vectors vectors.bin
"""

from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from runs import (
    DATA,
    TITLES,
    list_runs,
    make_runs,
    read_runs,
    save_figure,
    serve,
    write_table,
)

ALT = "Weights of the layers by task and place"
PLACES = ("input", "output")
RUNS = [run for task in DATA for run in list_runs(task, ["elmo"])]


def read_mixes(results: Path) -> dict[tuple[str, str], list[float]]:
    """Read the means of weights and gamma over seeds and folds, by task and place."""
    mixes = {}
    for task in DATA:
        runs = [*chain(*read_runs(results, task, "elmo"))]
        means = np.mean([run["mixes"] for run in runs], axis=0).tolist() if runs else []
        mixes |= {(task, place): mix for place, mix in zip(PLACES, means, strict=False)}
    return mixes


def plot(results: Path, path: Path) -> None:
    """Draw the weights, if any run is complete: a column for each place, a row for each layer."""
    mixes = read_mixes(results)
    if not mixes:
        return
    weights = np.array([mix[:-1] for mix in mixes.values()]).T
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(weights, vmin=0, vmax=max(2 / 3, weights.max()), aspect="auto")
    for (layer, column), weight in np.ndenumerate(weights):
        color = "#111111" if weight > 0.4 else "white"
        axes.text(column, layer, f"{weight:.2f}", ha="center", va="center", color=color)
    axes.set_xticks(range(len(mixes)), [f"{TITLES[task]}\n{place}" for task, place in mixes])
    axes.set_yticks(range(len(weights)), [f"layer {number}" for number in range(len(weights))])
    axes.invert_yaxis()
    figure.colorbar(image, label="weight")
    save_figure(figure, path)


def write(results: Path) -> str:
    """Format the weights as a table."""
    mixes = read_mixes(results)
    layers = [f"layer {number}" for number in range(max(map(len, mixes.values()), default=1) - 1)]
    rows = [
        [TITLES[task], place, *(f"{number:.2f}" for number in mix)]
        for (task, place), mix in mixes.items()
    ]
    return write_table(["task", "place", *layers, "gamma"], rows)


if __name__ == "__main__":
    serve(partial(make_runs, RUNS), write)

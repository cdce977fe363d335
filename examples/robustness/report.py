"""Compare measured encoders: a table, a JSON file and a plot.

python examples/robustness/report.py RESULTS results.json spelling.svg
"""

import json
from pathlib import Path
from typing import Annotated, Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import typer
from matplotlib import pyplot as plt
from measure import LEVELS, TRAINED_NOISES
from noise import NOISES
from tasks import TASKS

Array = npt.NDArray[Any]
# Encoders in the order of the table, with colour and style of the line. The first is compared with
# all others. "characters_noise" was trained with typing errors.
ENCODERS: dict[str, tuple[str, Any]] = {
    "characters": ("#0969da", "-"),
    "characters_noise": ("#cf222e", (0, (8, 2))),
    "pieces": ("#bc4c00", "--"),
    "words": ("#1a7f37", "-."),
    "fasttext": ("#8250df", (0, (3, 1, 1, 1, 1, 1))),
    "word2vec": ("#59636e", ":"),
}
TITLES = {
    "pos": "parts of speech, accuracy",
    "entities": "entities, F1",
    "sentiment": "sentiment, accuracy",
    "questions": "questions, accuracy",
}
SYNTHETIC = [row for row, name in enumerate(NOISES) if name != "natural"]
# Groups of noises; no head was trained with the `unseen` noises.
GROUPS = {
    "synthetic": SYNTHETIC,
    "unseen": [row for row in SYNTHETIC if list(NOISES)[row] not in TRAINED_NOISES],
    "natural": [list(NOISES).index("natural")],
}
HEADS = ("clean", "noised")
# Head and group of noises of each row of the second table.
ROWS = {
    "synthetic errors": ("clean", "synthetic"),
    "natural misspellings": ("clean", "natural"),
    "head trained with other errors": ("noised", "unseen"),
}
NUM_RESAMPLES = 1000
INTERVAL = (2.5, 97.5)  # percentiles
DARK_LOOK = """<style>
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  [style*="stroke: #000000"] { stroke: #c9d1d9 !important; }
}
</style>"""


def score_levels(counts: Array, weights: Array) -> Array:
    """Score the weighted examples of one head in percent, as a mean over seeds.

    Args:
        counts: Shape `(noises, levels, seeds, examples, 2)`.
        weights: How often each example is drawn, shape `(resamples, examples)`.

    Returns:
        Scores, shape `(resamples, noises, levels)`.
    """
    sums = np.tensordot(weights, counts.astype(np.float64), axes=(1, 3))
    return 100 * (sums[..., 0] / np.maximum(sums[..., 1], 1)).mean(axis=-1)


def measure_area(scores: Array, rows: list[int], *, is_normalised: bool = True) -> Array:
    """Average the score over the levels (area under the curve), and over some noises.

    Args:
        scores: Shape `(resamples, noises, levels)`.
        rows: Noises.
        is_normalised: Whether to return the area in percent of the score without errors.

    Returns:
        Areas, shape `(resamples,)`.
    """
    areas = np.trapezoid(scores, LEVELS, axis=-1) / (LEVELS[-1] - LEVELS[0])
    if is_normalised:
        areas = 100 * areas / np.maximum(scores[..., 0], 1e-9)
    return areas[:, rows].mean(axis=1)


def describe(values: Array) -> list[float]:
    """Return the first value (of the complete test set), and the interval of the others."""
    return [round(float(x), 2) for x in (values[0], *np.percentile(values[1:], INTERVAL))]


def compare(counts: dict[str, Array]) -> dict[str, Any]:
    """Compare the first encoder with each other one by a paired bootstrap over the examples.

    Args:
        counts: Counts of one head by encoder, as for `score_levels`.
    """
    size = next(iter(counts.values())).shape[3]
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(size, np.full(size, 1 / size), NUM_RESAMPLES)
    weights = np.concatenate([np.ones((1, size)), drawn])
    scores = {name: score_levels(one, weights) for name, one in counts.items()}
    first = next(iter(scores))
    found: dict[str, Any] = {}
    for name, one in scores.items():
        curve = one[:, SYNTHETIC].mean(axis=1)  # (resamples, levels)
        found[name] = {"curve": [describe(level) for level in curve.T]}
        found[name]["by noise"] = {n: describe(one[:, i, -1]) for i, n in enumerate(NOISES)}
        for group, rows in GROUPS.items():
            for kind, is_normalised in (("kept", True), ("mean", False)):
                area, its = (
                    measure_area(x, rows, is_normalised=is_normalised) for x in (one, scores[first])
                )
                found[name][f"{kind}, {group}"] = describe(area)
                found[name][f"{kind}, {group}, behind"] = describe(its - area)
    return found


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the score of each task and encoder against the share of misspelt words."""
    style = {"svg.fonttype": "none", "svg.hashsalt": "0", "font.family": "sans-serif"}
    with mpl.rc_context(style):
        figure, axes = plt.subplots(1, len(report["tasks"]), figsize=(12, 3.6), squeeze=False)
        for axis, (task, heads) in zip(axes[0], report["tasks"].items(), strict=True):
            for name, one in heads["clean"].items():
                colour, line = ENCODERS[name]
                value, low, high = np.array(one["curve"]).T
                x = 100 * np.array(LEVELS)
                axis.plot(
                    x, value, color=colour, linestyle=line, linewidth=2, label=name_encoder(name)
                )
                axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.set_title(TITLES[task], fontsize=11)
            axis.set_xticks(x)
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(axis="y", alpha=0.3)
        figure.supxlabel("misspelt words, % of the words of four letters and more", fontsize=10)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False)
        figure.tight_layout(rect=(0, 0, 1, 0.92))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None}, transparent=True)
        plt.close(figure)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("</defs>", f"</defs>{DARK_LOOK}", 1), encoding="utf-8")


def name_encoder(name: str) -> str:
    """Return the name of an encoder as the page shows it."""
    return name.replace("_noise", ", trained with errors")


def format_table(header: list[str], rows: list[list[str]]) -> str:
    """Format a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_scores(report: dict[str, Any]) -> str:
    """Format the score without errors and its mean over all shares of synthetic errors."""
    rows = []
    for name in report["encoders"]:
        found = [heads["clean"][name] for heads in report["tasks"].values()]
        cells = [f"{x['curve'][0][0]:.1f}, {x['mean, synthetic'][0]:.1f}" for x in found]
        rows.append([name_encoder(name), *cells])
    return format_table(["encoder", *report["tasks"]], rows)


def format_leads(report: dict[str, Any]) -> str:
    """Format the first encoder's lead in the mean score, with 95 % intervals."""
    rows = []
    for name in list(report["encoders"])[1:]:
        for label, (head, group) in ROWS.items():
            cells = [name_encoder(name), label]
            for heads in report["tasks"].values():
                value, low, high = heads[head][name][f"mean, {group}, behind"]
                cells.append(f"{value:+.1f} ({low:+.1f} to {high:+.1f})")
            rows.append(cells)
    return format_table(["other encoder", "errors", *report["tasks"]], rows)


def main(
    results: Annotated[Path, typer.Argument(help="Folder that measure.py has written.")],
    output: Annotated[Path, typer.Argument(help="JSON file to write.")],
    figure: Annotated[Path, typer.Argument(help="SVG file to write.")],
) -> None:
    """Compare the encoders; print tables in Markdown."""
    names = [name for name in ENCODERS if (results / f"{name}.json").exists()]
    report: dict[str, Any] = {
        "encoders": {n: json.loads((results / f"{n}.json").read_text("utf-8")) for n in names},
        "tasks": {},
    }
    for task in TASKS:
        found = {name: np.load(results / f"{name}-{task}.npz")["counts"] for name in names}
        report["tasks"][task] = {
            head: compare({name: one[row] for name, one in found.items()})
            for row, head in enumerate(HEADS)
        }
    output.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    draw(report, figure)
    typer.echo(f"{format_scores(report)}\n\n{format_leads(report)}")


if __name__ == "__main__":
    typer.run(main)

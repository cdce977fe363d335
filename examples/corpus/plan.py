"""Simulate the time and storage that a corpus needs on many machines that fail.

python examples/corpus/plan.py plan.svg

Replace the default values by your own: words per second of a core (run python -m hf_elmo embed on
a sample), failures, and throughput of the disk or network.
"""

from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import numpy as np
import typer
from matplotlib import pyplot as plt

HOUR = 3600.0
INK = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
SENTENCE_WORDS = 20
# Bytes per word in the output. With pooling, the words of a sentence share a vector.
KINDS = {
    "all layers, float32": lambda width: width * 3 * 4,
    "mix, float16": lambda width: width * 2,
    "mix pooled, float16": lambda width: width * 2 / SENTENCE_WORDS,
}


def simulate(
    chance: np.random.Generator,
    words: float,
    cores: int,
    *,
    rate: float,
    failures: float,
    restart: float,
    part: float,
) -> float:
    """Simulate shards of equal size, one per core, that resume after their last complete part.

    Args:
        chance: Random number generator.
        words: Number of words of the corpus.
        cores: Number of cores.
        rate: Words per second of a core.
        failures: Failures per hour of a core.
        restart: Seconds from a failure until the core computes again.
        part: Number of words of a part; a failure loses half a part on average.

    Returns:
        Hours until the last shard is complete.
    """
    left = np.full(cores, words / cores / rate / HOUR)  # hours of work
    hours = np.zeros(cores)
    while left.any():  # failures also interrupt repeated work
        hours += left
        struck = chance.poisson(failures * left)
        left = (struck * restart + chance.uniform(size=cores) * struck * part / rate) / HOUR
    return float(hours.max())


def simulate_whole(
    chance: np.random.Generator, words: float, cores: int, *, rate: float, failures: float
) -> float:
    """Simulate shards that restart from zero; return hours, or infinity for frequent failures."""
    need, hours = words / cores / rate / HOUR, np.zeros(cores)
    if failures * need > 10:  # fewer than one try in 22,000 succeeds
        return float("inf")
    alive = np.ones(cores, bool)
    while alive.any():
        until = chance.exponential(1 / failures, cores)
        hours += np.where(alive, np.minimum(until, need), 0)
        alive &= until < need
    return float(hours.max())


def main(
    output: Annotated[Path, typer.Argument(help="SVG file for the plot.")],
    rate: Annotated[float, typer.Option(help="Words per second of a core.")] = 420.0,
    width: Annotated[int, typer.Option(help="Width of a vector.")] = 1024,
    failures: Annotated[float, typer.Option(help="Failures per hour of a core.")] = 0.01,
    restart: Annotated[float, typer.Option(help="Seconds until a failed shard resumes.")] = 120.0,
    sink: Annotated[float, typer.Option(help="Bytes per second that the output accepts.")] = 1.25e9,
    part: Annotated[int, typer.Option(help="Number of words of a part.")] = 8192,
    seed: int = 0,
) -> None:
    """Print hours and bytes for 1e9 and 1e12 words; plot the hours against the number of cores."""
    chance = np.random.default_rng(seed)
    mpl.rcParams["svg.hashsalt"] = "plan"  # the same bytes each time
    mpl.rcParams |= dict.fromkeys(INK, "#7d8590")  # legible on white and on black
    figure, panels = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for panel, words in zip(panels, (1e9, 1e12), strict=True):
        print(f"{words:.0e} words: {words / rate / HOUR:,.0f} core hours")
        cores = [int(10**power) for power in np.arange(1, 5.01, 0.5)]
        options = {"rate": rate, "failures": failures}
        kept = [simulate(chance, words, n, restart=restart, part=part, **options) for n in cores]
        for kind, measure in KINDS.items():
            size = measure(width)
            writing = words * size / sink / HOUR
            hours = [max(computing, writing) for computing in kept]
            panel.plot(cores, hours, marker=".", label=kind)
            times = ", ".join(f"{n:,}: {h:,.1f} h" for n, h in zip(cores, hours, strict=True))
            print(
                f"  {kind}: {words * size / 1e12:,.2f} TB; full at {sink / size / rate:,.0f} cores"
            )
            print(f"    {times}")
        whole = [simulate_whole(chance, words, n, **options) for n in cores]
        panel.plot(cores, whole, ":", label="pooled, nothing kept at a failure")
        times = ", ".join(f"{n:,}: {h:,.1f} h" for n, h in zip(cores, whole, strict=True))
        print(f"  nothing kept: {times}")
        panel.set(xscale="log", yscale="log", xlabel="cores", title=f"{words:.0e} words")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("hours")
    panels[0].legend(fontsize=8, framealpha=0)
    figure.savefig(output, metadata={"Date": None}, transparent=True)


if __name__ == "__main__":
    typer.run(main)

"""How fast the engines of `python -m hf_elmo embed` are, beside one worker on one core.

python benchmarks/corpus_engines.py --words 200000

Each engine runs the whole command on the same text, and once on a line, which tells what starting
costs. The engines take turns, so that other work on the machine slows down all of them.
"""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

TEXT = Path(__file__).parents[1] / "tests" / "data" / "lighthouse.txt"
ENGINES = {
    "local, 1 worker": ["--cpus-per-worker", "1"],
    "local, 2 threads": ["--cpus-per-worker", "2"],
    "local, 2 workers": ["--workers", "2", "--cpus-per-worker", "1"],
}


def run(source: Path, arguments: list[str], model: str, layers: str, pooling: str) -> float:
    """Run the command and return its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "hf_elmo", "embed", str(source), f"{folder}/v.safetensors"),
            *("--model", model, "--layers", layers, "--pooling", pooling, *arguments),
        ]
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - start


def write_text(path: Path, num_words: int) -> None:
    """Write a story again and again, each time with names of its own: words never end."""
    sentences = [line.split() for line in TEXT.read_text(encoding="utf-8").splitlines()]
    with path.open("w", encoding="utf-8") as file:
        for number, words in enumerate(itertools.cycle(sentences)):
            if num_words <= 0:
                break
            file.write(" ".join([f"Name{number}", *words[1:]]) + "\n")
            num_words -= len(words)


def main(
    words: Annotated[int, typer.Option(help="Of the text.", min=1)] = 200_000,
    repeats: Annotated[int, typer.Option(help="Runs of each engine.", min=1)] = 3,
    model: Annotated[str, typer.Option(help="A folder or a name on the Hub.")] = "elmo-mini-en",
    layers: str = "mix",
    pooling: str = "mean",
) -> None:
    """Print a table of the engines: words a second, and how they compare."""
    with tempfile.TemporaryDirectory() as folder:
        line, text = Path(folder, "line.txt"), Path(folder, "text.txt")
        write_text(line, 1)
        write_text(text, words)
        wall: dict[str, list[float]] = {name: [] for name in ENGINES}
        start: dict[str, list[float]] = {name: [] for name in ENGINES}
        for _, (name, arguments) in itertools.product(range(repeats), ENGINES.items()):
            start[name].append(run(line, arguments, model, layers, pooling))
            wall[name].append(run(text, arguments, model, layers, pooling))
    print(f"{date.today()}, {words} words, {model}, {layers}, {pooling}, {os.cpu_count()} cores")
    print("| engine | start, s | whole, s | words/s | without start | of one local worker |")
    print("|---|---|---|---|---|---|")
    rates = {}
    for name in ENGINES:
        first, whole = statistics.median(start[name]), statistics.median(wall[name])
        rates[name] = words / (whole - first)
        ratio = rates[name] / rates["local, 1 worker"]
        row = f"{first:.1f} | {whole:.1f} | {words / whole:.0f} | {rates[name]:.0f} | {ratio:.2f}"
        print(f"| {name} | {row} |")


if __name__ == "__main__":
    typer.run(main)

"""Measure frozen encoders on misspelt words: python examples/robustness/measure.py DATA RESULTS ...

RESULTS contains a file for each pair of encoder and task. Existing files are not made again.
"""

import json
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from encoders import CHOICES, Encoder, count_parameters, load_encoder
from noise import NOISES, misspell_words
from tasks import TASKS, Example, Features, Task, read_task, score, train_head

LEVELS = (0.0, 0.2, 0.4, 0.6, 0.8)
SEEDS = (1, 2, 3)
TRAINED_NOISES = ("swap", "drop")  # of the training set with noise
TRAINED_LEVEL = 0.2  # share of misspelt words in it


def encode(
    encoder: Encoder, task: Task, examples: list[Example], noises: tuple[str, ...], *noise: float
) -> Features:
    """Encode examples, with noise if its level and seed are given."""
    sentences = [x.words for x in examples]
    if noise:
        level, seed = noise
        sentences = [misspell_words(words, noises, level, int(seed)) for words in sentences]
    return Features(list(encoder(sentences)), task)


def measure(encoder: Encoder, task: Task, parts: list[list[Example]]) -> dict[str, np.ndarray]:
    """Train a head on clean text and one on noised text, for each seed; test both on noised text.

    Returns:
        "dev", shape `(seeds,)`: score of the clean head on the clean dev set; "counts" of
        `Head.count`, shape `(heads, noises, levels, seeds, examples, 2)`.
    """
    train, dev, test = parts
    clean = [encode(encoder, task, part, ()) for part in (train, dev)]
    shape = (2, len(NOISES), len(LEVELS), len(SEEDS), len(test), 2)
    counts, scores = np.zeros(shape, np.int32), []
    for number, seed in enumerate(SEEDS):
        noise = TRAINED_NOISES, TRAINED_LEVEL, seed
        noised = [encode(encoder, task, part, *noise) for part in (train, dev)]
        heads = []
        for features in (clean, noised):
            head, found = train_head(task, (features[0], train), (features[1], dev), seed)
            heads.append(head)
            scores.append(found)
        for (row, name), (column, level) in product(enumerate(NOISES), enumerate(LEVELS)):
            if row and not level:  # without noise, all kinds are the same
                counts[:, row, column, number] = counts[:, 0, column, number]
                continue
            features = encode(encoder, task, test, (name,), level, seed)
            for kind, head in enumerate(heads):
                counts[kind, row, column, number] = head.count(task, features, test)
    return {"dev": np.array(scores[::2]), "counts": counts}


def choose_vector(folder: Path, data: Path, max_train: int, max_test: int) -> dict[str, float]:
    """Score, on the clean dev sets, each way to make a word's vector from its pieces."""
    scores = {}
    for choice in CHOICES:
        encoder, found = load_encoder(folder, choice), []
        for task in TASKS.values():
            train, dev, _ = read_task(task, data, max_train, max_test)
            clean = [(encode(encoder, task, part, ()), part) for part in (train, dev)]
            found.append(train_head(task, clean[0], clean[1], SEEDS[0])[1])
        scores[choice] = float(np.mean(found))
    return scores


def main(
    data: Annotated[Path, typer.Argument(help="Folder with ewt, ner, sst5 and trec.")],
    results: Annotated[Path, typer.Argument(help="Folder for the results.")],
    encoders: Annotated[list[Path], typer.Argument(help="Folders of encoders.")],
    max_train: Annotated[
        int, typer.Option(help="Maximum number of sentences that train a head.")
    ] = 3000,
    max_test: Annotated[
        int, typer.Option(help="Maximum number of sentences of a dev or test set.")
    ] = 1000,
) -> None:
    """Measure each encoder on each task."""
    results.mkdir(parents=True, exist_ok=True)
    for folder in encoders:
        about = results / f"{folder.name}.json"
        if not about.exists():
            found = {"parameters": count_parameters(folder)}
            if folder.name == "pieces":
                found["vectors"] = choose_vector(folder, data, max_train, max_test)
            about.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
        vectors = json.loads(about.read_text("utf-8")).get("vectors", {"first": 0})
        encoder = load_encoder(folder, max(vectors, key=vectors.get))
        for name, task in TASKS.items():
            path = results / f"{folder.name}-{name}.npz"
            if path.exists():
                continue
            parts = read_task(task, data, max_train, max_test)
            found = measure(encoder, task, parts)
            part = path.with_suffix(".part.npz")
            np.savez_compressed(part, **found)
            part.replace(path)
            clean = [100 * score(x) for x in found["counts"][:, 0, 0, 0]]
            typer.echo(f"{path.name}: clean {clean[0]:.1f}, trained with noise {clean[1]:.1f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    typer.run(main)

"""What a biLM's layers know: part of speech by a linear probe, senses of "play" by neighbours.

Both are the paper's own probes (Peters et al. 2018, 5.3: tables 4 to 6), on open data.
"""

import gzip
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import typer
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.embedding import embed
from hf_elmo.pretrained import BUNDLED_NAME, resolve_name

Array = npt.NDArray[Any]


def read_tagged(path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Read words and universal part-of-speech tags from a gzipped CoNLL-U file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for block in file.read().split("\n\n"):
            rows = [line.split("\t") for line in block.splitlines() if line[:1].isdigit()]
            rows = [row for row in rows if row[0].isdigit()]  # no ranges, no empty nodes
            if rows:
                yield [row[1] for row in rows], [row[3] for row in rows]


def probe_tags(
    model: ElmoModel, tokenizer: ElmoTokenizer, folder: Path, num_sentences: int
) -> list[float]:
    """Train a linear probe for each layer; give its accuracy on the test part in percent."""
    parts = {}
    for part in ("train", "test"):
        (path,) = folder.glob(f"*-{part}.conllu.gz")
        sentences = list(read_tagged(path))[: num_sentences if part == "train" else None]
        layers = embed((words for words, _ in sentences), model, tokenizer, layers="all")
        features = np.concatenate(list(layers), axis=1)  # (layers, tokens, width)
        parts[part] = features, [tag for _, tags in sentences for tag in tags]
    (train, train_tags), (test, test_tags) = parts["train"], parts["test"]
    return [
        100 * fit_probe(x, train_tags).score(y, test_tags) for x, y in zip(train, test, strict=True)
    ]


def fit_probe(features: Array, tags: list[str]) -> Any:
    """Fit a multinomial logistic regression on standardised features."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200, tol=1e-3))
    return probe.fit(features, tags)


def probe_senses(model: ElmoModel, tokenizer: ElmoTokenizer, path: Path) -> list[tuple[str, ...]]:
    """Give each use of "play" the sense of its nearest other use, by each layer."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    senses = np.array([row[0] for row in rows])
    layers = embed((row[3].split() for row in rows), model, tokenizer, layers="all")
    places = [int(row[2]) for row in rows]
    uses = np.stack([x[:, place] for x, place in zip(layers, places, strict=True)], axis=1)
    uses /= np.linalg.norm(uses, axis=-1, keepdims=True)
    counts = Counter(senses)
    by_frequency = np.array([(counts - Counter([s])).most_common(1)[0][0] for s in senses])
    is_baseline_right = by_frequency == senses
    table = [("most frequent sense", f"{100 * is_baseline_right.mean():.1f}", "")]
    for number, vectors in enumerate(uses):  # (uses, width)
        similarity = vectors @ vectors.T
        np.fill_diagonal(similarity, -np.inf)
        is_right = senses[similarity.argmax(axis=1)] == senses
        wins, losses = (is_right & ~is_baseline_right).sum(), (~is_right & is_baseline_right).sum()
        p = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0  # McNemar, exact
        table.append((f"layer {number}", f"{100 * is_right.mean():.1f}", f"{p:.2g}"))
    return table


def main(
    data: Annotated[Path, typer.Argument(help="Folder with ewt/ and wsd/play_probe.tsv.gz.")],
    model: Annotated[str, typer.Option(help="Folder or name of a biLM.")] = BUNDLED_NAME,
    sentences: Annotated[int, typer.Option(help="Sentences that train the probe.")] = 12_544,
) -> None:
    """Print two tables in Markdown: part of speech by layer, senses of "play" by layer."""
    name = resolve_name(model)
    tokenizer = ElmoTokenizer.from_pretrained(name)
    trained = ElmoModel.from_pretrained(name)
    torch.manual_seed(0)
    random = ElmoModel(trained.config).eval()
    scores = [probe_tags(m, tokenizer, data / "ewt", sentences) for m in (trained, random)]
    print("| layer | POS accuracy, trained | random weights |\n|---|---|---|")
    for number, (ours, twin) in enumerate(zip(*scores, strict=True)):
        print(f"| {number} | {ours:.2f} | {twin:.2f} |")
    print("\n| sense of 'play' by | accuracy | p against the most frequent |\n|---|---|---|")
    for row in probe_senses(trained, tokenizer, data / "wsd" / "play_probe.tsv.gz"):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    typer.run(main)

"""Table 6: parts of speech by linear probes of each layer, also of a biLM with random weights.

python examples/paper/table_6.py DATA RESULTS --vectors vectors.bin

The strength of the regularisation is chosen on the dev part, separately for each layer.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from layers import (
    Array,
    Bilm,
    count_right,
    draw_bilm,
    load_bilm,
    make_once,
    read_lines,
    read_table,
    score_accuracy,
)
from runs import Settings, serve, show_interval, write_table
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

STRENGTHS = (0.01, 0.1, 1.0)  # inverse strengths of the regularisation
PARTS = ("train", "dev", "test")
PAPER = {"layer 1": "97.3", "layer 2": "96.8"}
HEADER = (
    *("vectors", "dev", "test", "95 % interval of the difference to layer 0"),
    *("95 % interval of the difference to layer 1", "paper: Penn Treebank, test"),
)


def read_tagged(path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Read words and universal parts of speech from CoNLL-U."""
    rows: list[list[str]] = []
    for line in [*read_lines(path), ""]:
        if line.strip():
            rows.append(line.split("\t"))
            continue
        words = [row for row in rows if row[0].isdigit()]  # no comments, ranges or empty nodes
        if words:
            yield [row[1] for row in words], [row[3] for row in words]
        rows = []


def probe_layers(bilm: Bilm, data: Path) -> Iterator[dict[str, Any]]:
    """Train probes of each layer; yield the result of each layer's best probe on the dev part."""
    layers, tags, texts = {}, {}, {}
    for part in PARTS:
        (path,) = (data / "ewt").glob(f"*-{part}.conllu.gz")
        sentences = list(read_tagged(path))
        layers[part] = np.concatenate(list(bilm.embed(words for words, _ in sentences)), axis=1)
        tags[part] = np.array([tag for _, row in sentences for tag in row])
        texts[part] = [number for number, (words, _) in enumerate(sentences) for _ in words]
    for layer in range(bilm.num_layers):
        probes = {}
        for strength in STRENGTHS:
            probe = fit_probe(layers["train"][layer], tags["train"], strength)
            probes[100 * probe.score(layers["dev"][layer], tags["dev"])] = strength, probe
        strength, probe = probes[max(probes)]
        is_right = probe.predict(layers["test"][layer]) == tags["test"]
        yield {
            "layer": layer,
            "strength": strength,
            "dev": max(probes),
            "counts": count_right(is_right, texts["test"]).astype(int)[0].tolist(),
        }


def fit_probe(features: Array, tags: Array, strength: float) -> Any:
    """Fit a multinomial logistic regression on standardised features."""
    regression = LogisticRegression(C=strength, max_iter=200, tol=1e-3)
    return make_pipeline(StandardScaler(), regression).fit(features, tags)


def compute(settings: Settings) -> dict[str, list[dict[str, Any]]]:
    """Probe the biLM, and a biLM with random weights."""
    bilm = load_bilm(settings.model)
    bilms = {"trained": bilm, "random weights": draw_bilm(bilm)}
    return {name: list(probe_layers(one, settings.data)) for name, one in bilms.items()}


def write(results: Path) -> str:
    """Format the table."""
    rows = []
    table = read_table("table_6", results) or {}
    for name, probes in table.items():
        for probe in probes:
            title = f"layer {probe['layer']}"
            counts = np.array([probe["counts"]])
            differences = [
                ""
                if probe is other
                else show_interval(score_accuracy, np.array([other["counts"]]), counts)
                for other in table["trained"][:2]
            ]
            test = f"{score_accuracy(counts[0]):.1f}"
            is_trained = name == "trained"
            full_title = title if is_trained else f"{title}, {name}"
            paper = PAPER.get(title, "") if is_trained else ""
            rows.append([full_title, f"{probe['dev']:.1f}", test, *differences, paper])
    return write_table(HEADER, rows)


make = partial(make_once, "table_6", compute)

if __name__ == "__main__":
    serve(make, write)

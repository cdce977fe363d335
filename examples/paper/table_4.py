"""Table 4: nearest neighbours of words in context, beside those of static vectors.

python examples/paper/table_4.py DATA RESULTS --vectors vectors.bin

The neighbours are words of SemCor in other sentences. A second table counts how often the nearest
other use of the same form has the same part of speech, for forms that are often noun and often
verb. It also counts how often the nearest other use of "play" has the same sense.
"""

from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from layers import (
    Array,
    count_right,
    load_bilm,
    make_once,
    normalise,
    read_lines,
    read_sentences,
    read_table,
    score_accuracy,
)
from runs import Settings, serve, show_interval, write_table

from hf_elmo.tasks.static_vectors import read_vectors

FORMS = ("play", "present", "mean", "change")  # each as noun (or adjective) and as verb
NUM_NEIGHBOURS = 3
NUM_STATIC = 10
CONTEXT = 6  # words that are shown on each side
LENGTHS = range(8, 21)  # number of words of a sentence that is shown
MIN_USES = 15  # least number of uses of a form as noun, and as verb


def find_static(path: Path) -> dict[str, list[str]]:
    """Find the nearest words of each form by static vectors."""
    vectors = read_vectors(path)
    table = normalise(vectors.table.numpy())
    rows = {word: row for row, word in enumerate(vectors.words)}
    found = {}
    for form in FORMS:
        if form in rows:
            order = np.argsort(-(table @ table[rows[form]]))[1 : NUM_STATIC + 1]
            found[form] = [vectors.words[row] for row in order]
    return found


class Uses:
    """All words of SemCor with their vectors.

    Args:
        sentences: Sentences with `tokens` and `pos`.
        layers: Unit vectors of all words, shape `(layers, words, hidden_size)`.
    """

    def __init__(self, sentences: list[dict[str, Any]], layers: Array) -> None:
        self.places = [(n, i) for n, x in enumerate(sentences) for i in range(len(x["tokens"]))]
        self.texts = np.array([number for number, _ in self.places])
        self.tokens = [token.lower() for x in sentences for token in x["tokens"]]
        self.parts = np.array([part[0] for x in sentences for part in x["pos"]])
        self.sentences, self.layers = sentences, layers
        self.rows: dict[str, list[int]] = defaultdict(list)
        for row, token in enumerate(self.tokens):
            self.rows[token].append(row)

    def show(self, row: int) -> str:
        """Format a word in its context."""
        number, place = self.places[row]
        tokens = self.sentences[number]["tokens"]
        words = [*tokens[:place], f"**{tokens[place]}**", *tokens[place + 1 :]]
        start, stop = max(0, place - CONTEXT), place + CONTEXT + 1
        return " ".join(words[start:stop])

    def find_neighbours(self, row: int, layer: int) -> list[str]:
        """Find the nearest words in other sentences."""
        closeness = self.layers[layer] @ self.layers[layer][row]
        closeness[self.texts == self.texts[row]] = -np.inf
        return [self.show(x) for x in np.argsort(-closeness)[:NUM_NEIGHBOURS]]

    def find_sources(self, form: str) -> list[int]:
        """Find the first verb, and the first noun or adjective, in sentences of suitable length."""
        short = [
            row
            for row in self.rows[form]
            if len(self.sentences[self.texts[row]]["tokens"]) in LENGTHS
        ]
        verbs = [row for row in short if self.parts[row] == "V"]
        others = [row for row in short if self.parts[row] in "NJ"]
        return [*verbs[:1], *others[:1]]

    def compare_parts(self) -> dict[str, list[list[int]]]:
        """Count uses whose nearest other use of the same form has their part of speech."""
        texts, right = [], defaultdict(list)
        for every in self.rows.values():
            rows = np.array([row for row in every if self.parts[row] in "NV"])
            if not len(rows):
                continue
            parts = self.parts[rows]
            uses = Counter(parts.tolist())
            if min(uses["N"], uses["V"]) < MIN_USES:
                continue
            texts += self.texts[rows].tolist()
            right["most frequent"] += (parts == uses.most_common(1)[0][0]).tolist()
            for layer, vectors in enumerate(self.layers):
                nearest = find_nearest(vectors[rows], self.texts[rows])
                right[f"layer {layer}"] += (parts[nearest] == parts).tolist()
        return {
            name: count_right(np.array(x), texts)[0].astype(int).tolist()
            for name, x in right.items()
            if x
        }


def find_nearest(vectors: Array, texts: Array) -> Array:
    """Find the nearest vector of another text for each vector."""
    closeness = vectors @ vectors.T
    closeness[texts[:, None] == texts] = -np.inf
    return closeness.argmax(axis=1)


def compare_senses(path: Path, bilm: Any) -> dict[str, list[list[int]]]:
    """Count uses of "play" whose nearest other use has their sense."""
    rows = [line.split("\t") for line in read_lines(path)[1:]]
    senses = np.array([row[0] for row in rows])
    places = [int(row[2]) for row in rows]
    layers = bilm.embed([row[3].split() for row in rows])
    uses = np.stack([x[:, place] for x, place in zip(layers, places, strict=True)], axis=1)
    counts = Counter(senses.tolist())
    frequent = [(counts - Counter([s])).most_common(1)[0][0] for s in senses.tolist()]
    numbers = np.arange(len(rows))
    right = {"most frequent": np.array(frequent) == senses}
    for layer, vectors in enumerate(normalise(uses)):
        if layer:  # the vectors of layer 0 are all equal
            right[f"layer {layer}"] = senses[find_nearest(vectors, numbers)] == senses
    return {name: count_right(x, numbers)[0].astype(int).tolist() for name, x in right.items()}


def compute(settings: Settings) -> dict[str, Any]:
    """Find neighbours, and count how often part of speech or sense agree."""
    bilm = load_bilm(settings.model)
    sentences = read_sentences(settings.data / "wsd" / "semcor_all-words.jsonl.gz")
    layers = np.concatenate(list(bilm.embed(x["tokens"] for x in sentences)), axis=1)
    for layer in layers:
        layer[:] = normalise(layer)
    uses = Uses(sentences, layers)
    top = bilm.num_layers - 1
    neighbours = [
        {"form": form, "source": uses.show(row), "neighbours": uses.find_neighbours(row, top)}
        for form in FORMS
        for row in uses.find_sources(form)
    ]
    return {
        "static": find_static(settings.vectors),
        "neighbours": neighbours,
        "parts": uses.compare_parts(),
        "senses": compare_senses(settings.data / "wsd" / "play_probe.tsv.gz", bilm),
    }


def write(results: Path) -> str:
    """Format two tables: neighbours, and how often part of speech or sense agree."""
    table = read_table("table_4", results)
    if table is None:
        return "Not run yet."
    rows = [["static", form, ", ".join(words)] for form, words in table["static"].items()]
    rows = rows or [["static", "", "not run yet"]]
    rows += [["top layer", x["source"], "<br>".join(x["neighbours"])] for x in table["neighbours"]]
    rows = [[cell.replace("|", "\\|").replace("``", '"') for cell in row] for row in rows]
    measures = []
    for title, name in (("same part of speech", "parts"), ('same sense of "play"', "senses")):
        counts = {way: np.array([x]) for way, x in table[name].items()}
        for way, x in counts.items():
            baseline = counts["most frequent"]
            interval = "" if x is baseline else show_interval(score_accuracy, baseline, x)
            measures.append([title, way, f"{score_accuracy(x[0]):.1f}", interval])
    header = ("the nearest other use has the", "by", "share", "95 % interval of the difference")
    return "\n\n".join(
        [write_table(("vectors", "word", "neighbours"), rows), write_table(header, measures)]
    )


make = partial(make_once, "table_4", compute)

if __name__ == "__main__":
    serve(make, write)

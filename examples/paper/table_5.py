"""Table 5: word senses by the nearest average of SemCor, with and without a fallback.

python examples/paper/table_5.py DATA RESULTS --vectors vectors.bin

As in the paper (5.3, after Melamud et al. 2016), the vectors of each sense's uses in SemCor are
averaged, and a use in the test sets gets the sense with the nearest average. WordNet's first sense
is the fallback for words that SemCor does not contain. To explain the result, the table also groups
uses by the frequency of the word in SemCor. It also scores senses by the cosine plus a weight times
the log frequency. The weight is chosen on semeval2007, which is not in the four test sets.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from layers import (
    Array,
    Bilm,
    count_right,
    load_bilm,
    make_once,
    normalise,
    read_lines,
    read_sentences,
    read_table,
    score_accuracy,
)
from runs import Settings, compare, serve, write_table

Word: TypeAlias = tuple[str, str]  # lemma and part of speech

DEV = "semeval2007"
TESTS = ("senseval2", "senseval3", "semeval2013", "semeval2015")
WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)  # candidate weights of the log frequency of a sense
FEW_USES = 10  # of a word in SemCor
BASELINES = {
    "first sense of WordNet": "the first sense",
    "most frequent in SemCor": "the most frequent sense",
}
PAPER = {"first sense of WordNet": "65.9", "layer 1": "67.4", "layer 2": "69.0"}


class Use(NamedTuple):
    """A word in a sentence, with its correct senses.

    Attributes:
        word: Lemma and part of speech.
        senses: Keys of WordNet.
        text: Identifier of the sentence.
        vectors: Mean over the word's tokens, scaled to length 1, shape `(layers, hidden_size)`.
    """

    word: Word
    senses: list[str]
    text: str
    vectors: Array


def read_uses(path: Path, bilm: Bilm) -> Iterator[Use]:
    """Read the uses of a file, sentence by sentence."""
    sentences = read_sentences(path)
    layers = bilm.embed(sentence["tokens"] for sentence in sentences)
    for sentence, vectors in zip(sentences, layers, strict=True):
        for start, stop, lemma, part, senses, *_ in sentence["inst"]:
            mean = normalise(vectors[:, start:stop].mean(axis=1))
            yield Use((lemma, part), senses, sentence["id"], mean)


def read_first_senses(path: Path) -> dict[Word, str]:
    """Read WordNet's first sense of each word."""
    rows = [line.split("\t") for line in read_lines(path)[1:]]
    return {(row[0], row[1]): row[3] for row in rows if row[2] == "1"}


class SenseAverages:
    """Average vector and number of uses of each sense in SemCor.

    Args:
        uses: The uses to learn from.
        first_senses: Fallback for words without a use; empty = no fallback.
    """

    def __init__(self, uses: Iterable[Use], first_senses: Mapping[Word, str]) -> None:
        sums: dict[Word, dict[str, Array]] = defaultdict(dict)
        self.counts: dict[Word, Counter[str]] = defaultdict(Counter)
        for use in uses:
            for sense in use.senses:
                sums[use.word][sense] = sums[use.word].get(sense, 0) + use.vectors
                self.counts[use.word][sense] += 1
        self._senses = {word: list(senses) for word, senses in sums.items()}
        self._averages = {
            word: normalise(np.stack(list(senses.values()), axis=1))
            for word, senses in sums.items()
        }  # (layers, senses, hidden_size)
        self.first_senses = first_senses

    def find(self, use: Use, layer: int, weight: float = 0.0) -> str | None:
        """Find the sense with the greatest cosine plus a weight times its log frequency."""
        if use.word not in self._senses:
            return self.first_senses.get(use.word)
        senses = self._senses[use.word]
        counts = np.array([self.counts[use.word][sense] for sense in senses])
        scores = self._averages[use.word][layer] @ use.vectors[layer]
        return senses[int((scores + weight * np.log(counts / counts.sum())).argmax())]

    def find_most_frequent(self, use: Use) -> str | None:
        """Find the most frequent sense in SemCor."""
        if use.word not in self.counts:
            return self.first_senses.get(use.word)
        return self.counts[use.word].most_common(1)[0][0]

    def without_fallback(self) -> "SenseAverages":
        """Return the same averages without first senses."""
        other = copy(self)
        other.first_senses = {}
        return other


Find: TypeAlias = Callable[[Use], str | None]


def group_uses(
    sets: Mapping[str, Sequence[Use]], counts: Mapping[Word, Counter[str]]
) -> dict[str, list[Use]]:
    """Group the uses by data set, and by their frequency in SemCor."""
    every = [use for uses in sets.values() for use in uses]
    test = [use for name in TESTS for use in sets[name]]
    seen = [use for use in test if len(counts.get(use.word, ())) > 1]
    few = [use for use in seen if counts[use.word].total() < FEW_USES]
    many = [use for use in seen if counts[use.word].total() >= FEW_USES]
    groups = {"all five sets": every, **sets, "four sets": test, "several senses seen": seen}
    return groups | {f"under {FEW_USES} uses": few, f"{FEW_USES} uses and more": many}


def list_ways(averages: SenseAverages, num_layers: int, dev: Sequence[Use]) -> dict[str, Find]:
    """List the methods that find senses."""
    alone = averages.without_fallback()
    ways: dict[str, Find] = {
        "first sense of WordNet": lambda use: averages.first_senses.get(use.word),
        "most frequent in SemCor": averages.find_most_frequent,
        "most frequent, no fallback": alone.find_most_frequent,
    }
    for layer in range(num_layers):
        ways[f"layer {layer}"] = partial(averages.find, layer=layer)
        ways[f"layer {layer}, no fallback"] = partial(alone.find, layer=layer)
        finders = {weight: partial(averages.find, layer=layer, weight=weight) for weight in WEIGHTS}
        weight = max(WEIGHTS, key=lambda x: find_right(finders[x], dev).mean())
        ways[f"layer {layer}, {weight} of the log frequency"] = finders[weight]
    return ways


def find_right(find: Find, uses: Sequence[Use]) -> Array:
    """Return whether the sense of each use is found."""
    return np.array([find(use) in use.senses for use in uses])


def compute(settings: Settings) -> dict[str, Any]:
    """Compare methods on all groups of uses, with intervals of the difference on four sets."""
    folder, bilm = settings.data / "wsd", load_bilm(settings.model)
    first_senses = read_first_senses(folder / "sense_inventory.tsv.gz")
    semcor = read_uses(folder / "semcor_all-words.jsonl.gz", bilm)
    averages = SenseAverages(semcor, first_senses)
    sets = {
        name: list(read_uses(folder / "eval" / f"{name}.jsonl.gz", bilm)) for name in (DEV, *TESTS)
    }
    groups = group_uses(sets, averages.counts)
    test = groups["four sets"]  # without the one that chose the weights
    texts = [use.text for use in test]
    ways = list_ways(averages, bilm.num_layers, sets[DEV])
    counts = {name: count_right(find_right(find, test), texts) for name, find in ways.items()}
    return {
        "uses": {name: len(uses) for name, uses in groups.items()},
        "accuracy": {
            way: {
                name: 100 * find_right(find, uses).mean() for name, uses in groups.items() if uses
            }
            for way, find in ways.items()
        },
        "difference": {
            baseline: {
                way: compare(score_accuracy, counts[baseline], x) for way, x in counts.items()
            }
            for baseline in BASELINES
        },
        "second layer over first": compare(score_accuracy, counts["layer 1"], counts["layer 2"]),
    }


def write(results: Path) -> str:
    """Format the table."""
    table = read_table("table_5", results)
    if table is None:
        return "Not run yet."
    names = [f"{name} ({number:,})" for name, number in table["uses"].items()]
    titles = [f"four sets: 95 % interval of the difference to {x}" for x in BASELINES.values()]
    header = ["senses by", *names, *titles, "paper"]
    rows = []
    for way, shares in table["accuracy"].items():
        found = [table["difference"][baseline][way] for baseline in BASELINES]
        intervals = [f"{low:+.1f} to {high:+.1f}" if low or high else "" for low, high, _ in found]
        numbers = [f"{shares[name]:.1f}" if name in shares else "" for name in table["uses"]]
        rows.append([way, *numbers, *intervals, PAPER.get(way, "")])
    low, high, _ = table["second layer over first"]
    note = f"Layer 2 minus layer 1, four sets: {low:+.1f} to {high:+.1f} (95 %)."
    return f"{write_table(header, rows)}\n\n{note}"


make = partial(make_once, "table_5", compute)

if __name__ == "__main__":
    serve(make, write)

"""What a biLM's layers know of word senses: those of "play", and of all words (paper's Table 5).

python tests/benchmarks/senses.py DATA

All words, as in the paper (Peters et al. 2018, 5.3, after Melamud et al. 2016): the vectors of each
sense's uses in SemCor are averaged; a use in the test sets gets the sense with the nearest average,
and WordNet's first sense where SemCor does not have the word. To see why it wins or loses, the
same is told for the uses where a choice is to be made, by how often SemCor has the word, and with
the frequency of the senses counted in (its weight chosen on semeval2007, which is then left out).
"""

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import typer
from scipy.stats import binomtest

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.inference.embedding import embed

Array = npt.NDArray[Any]
Word: TypeAlias = tuple[str, str]  # lemma and part of speech

DEV = "semeval2007"
TESTS = ("senseval2", "senseval3", "semeval2013", "semeval2015")
WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)  # of the log of a sense's frequency, to choose from
FEW_USES = 10  # of a word in SemCor


class Use(NamedTuple):
    """A word in a sentence, with the senses that are right.

    Attributes:
        word: What it is.
        senses: Keys of WordNet.
        vectors: Mean over its tokens, by layer, of length one, shape `(layers, hidden_size)`.
    """

    word: Word
    senses: list[str]
    vectors: Array


def read_uses(path: Path, model: ElmoModel, tokenizer: ElmoTokenizer) -> Iterator[Use]:
    """Read the uses of a file, sentence by sentence."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        sentences = [json.loads(line) for line in file]
    tokens = (sentence["tokens"] for sentence in sentences)
    layers = embed(tokens, model, tokenizer, layers="all")
    for sentence, vectors in zip(sentences, layers, strict=True):
        for start, stop, lemma, part, senses, *_ in sentence["inst"]:
            yield Use((lemma, part), senses, normalise(vectors[:, start:stop].mean(axis=1)))


def normalise(vectors: Array) -> Array:
    """Divide vectors by their lengths; zeros stay zeros."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def read_first_senses(path: Path) -> dict[Word, str]:
    """Read WordNet's first sense of each word."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [line.split("\t") for line in file][1:]
    return {(row[0], row[1]): row[3] for row in rows if row[2] == "1"}


class SenseAverages:
    """The average vector and the number of uses of each sense in SemCor.

    Args:
        uses: The uses to learn from.
        first_senses: For words that have none there.
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
        """Find the sense by nearness, plus a weight times the log of its frequency."""
        if use.word not in self._senses:
            return self.first_senses.get(use.word)
        senses = self._senses[use.word]
        counts = np.array([self.counts[use.word][sense] for sense in senses])
        scores = self._averages[use.word][layer] @ use.vectors[layer]
        return senses[int((scores + weight * np.log(counts / counts.sum())).argmax())]

    def find_most_frequent(self, use: Use) -> str | None:
        """Find the sense that SemCor has most often."""
        if use.word not in self.counts:
            return self.first_senses.get(use.word)
        return self.counts[use.word].most_common(1)[0][0]


def find_right(find: Callable[[Use], str | None], uses: Sequence[Use]) -> Array:
    """Return for each use whether its sense is found."""
    return np.array([find(use) in use.senses for use in uses])


def compare(is_right: Array, is_baseline_right: Array) -> float:
    """Compute p of McNemar's exact test."""
    wins, losses = (is_right & ~is_baseline_right).sum(), (~is_right & is_baseline_right).sum()
    return binomtest(wins, wins + losses).pvalue if wins + losses else 1.0


def probe_all_words(
    model: ElmoModel, tokenizer: ElmoTokenizer, folder: Path
) -> Iterator[tuple[str, ...]]:
    """Compare ways to find senses, a row each: all uses, then groups of them, in percent."""
    first_senses = read_first_senses(folder / "sense_inventory.tsv.gz")
    semcor = read_uses(folder / "semcor_all-words.jsonl.gz", model, tokenizer)
    averages = SenseAverages(semcor, first_senses)
    dev, *tests = (
        list(read_uses(folder / "eval" / f"{name}.jsonl.gz", model, tokenizer))
        for name in (DEV, *TESTS)
    )
    test = [use for uses in tests for use in uses]
    seen = [use for use in test if len(averages.counts.get(use.word, ())) > 1]
    few = [use for use in seen if averages.counts[use.word].total() < FEW_USES]
    many = [use for use in seen if averages.counts[use.word].total() >= FEW_USES]
    groups = {"all five sets": dev + test, "four sets": test, "several senses seen": seen}
    groups |= {f"under {FEW_USES} uses": few, f"{FEW_USES} uses and more": many}
    titles = (f"{name} ({len(uses):,})" for name, uses in groups.items())
    yield "senses by", *titles, "p, four sets, against the most frequent"
    ways: dict[str, Callable[[Use], str | None]] = {
        "first in WordNet": lambda use: first_senses.get(use.word),
        "most frequent in SemCor": averages.find_most_frequent,
    }
    for layer in range(model.config.num_hidden_layers + 1):
        finders = {weight: partial(averages.find, layer=layer, weight=weight) for weight in WEIGHTS}
        weight = max(WEIGHTS, key=lambda weight: find_right(finders[weight], dev).mean())
        ways[f"layer {layer}"] = finders[0.0]
        ways[f"layer {layer}, {weight} of the frequency"] = finders[weight]
    is_baseline_right = find_right(averages.find_most_frequent, test)
    for name, find in ways.items():
        shares = (f"{100 * find_right(find, uses).mean():.1f}" for uses in groups.values())
        yield name, *shares, f"{compare(find_right(find, test), is_baseline_right):.2g}"


def probe_play(model: ElmoModel, tokenizer: ElmoTokenizer, path: Path) -> Iterator[tuple[str, ...]]:
    """Give each use of "play" the sense of its nearest other use, by each layer."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    senses = np.array([row[0] for row in rows])
    layers = embed((row[3].split() for row in rows), model, tokenizer, layers="all")
    places = [int(row[2]) for row in rows]
    uses = np.stack([x[:, place] for x, place in zip(layers, places, strict=True)], axis=1)
    counts = Counter(senses)
    by_frequency = np.array([(counts - Counter([s])).most_common(1)[0][0] for s in senses])
    is_baseline_right = by_frequency == senses
    yield 'senses of "play" by', "accuracy", "p against the most frequent"
    yield "most frequent sense", f"{100 * is_baseline_right.mean():.1f}", ""
    for number, vectors in enumerate(normalise(uses)):  # (uses, width)
        similarity = vectors @ vectors.T
        np.fill_diagonal(similarity, -np.inf)
        is_right = senses[similarity.argmax(axis=1)] == senses
        p = compare(is_right, is_baseline_right)
        yield f"layer {number}", f"{100 * is_right.mean():.1f}", f"{p:.2g}"


def main(
    data: Annotated[Path, typer.Argument(help="Folder with wsd/.")],
    model: Annotated[str, typer.Option(help="Folder or name of a biLM.")] = BUNDLED_NAME,
) -> None:
    """Print two tables in Markdown: the senses of "play", and of all words."""
    name = resolve_name(model)
    tokenizer, bilm = ElmoTokenizer.from_pretrained(name), ElmoModel.from_pretrained(name)
    play = probe_play(bilm, tokenizer, data / "wsd" / "play_probe.tsv.gz")
    for table in (play, probe_all_words(bilm, tokenizer, data / "wsd")):
        for number, row in enumerate(table):
            print(f"| {' | '.join(row)} |" + ("\n" + "|---" * len(row) + "|" if not number else ""))
        print()


if __name__ == "__main__":
    typer.run(main)

"""Metrics, equal to those of the usual scorers, computed from sums over examples."""

import re
import string
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

ARTICLES, PUNCTUATION = re.compile(r"\b(a|an|the)\b"), str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Metric:
    """A metric computed from summed per-example counts.

    Attributes:
        count: Compares an example's gold result with its prediction and returns counts.
        total: Computes scores from 0 to 1 from the sums of these counts.
    """

    count: Callable[[Any, Any], Sequence[float]]
    total: Callable[[Sequence[float]], dict[str, float]]

    def score(self, gold: Sequence[Any], found: Sequence[Any]) -> dict[str, float]:
        """Score at least one prediction; each has a gold result."""
        counts = [self.count(right, other) for right, other in zip(gold, found, strict=True)]
        return self.total([sum(column) for column in zip(*counts, strict=True)])


def _count_spans(gold: Iterable[Hashable], found: Iterable[Hashable]) -> Sequence[float]:
    right, other = set(gold), set(found)
    return len(right & other), len(right), len(other)


def _total_spans(sums: Sequence[float]) -> dict[str, float]:
    num_right, num_gold, num_found = sums
    return {
        "precision": num_right / max(num_found, 1),
        "recall": num_right / max(num_gold, 1),
        "f1": 2 * num_right / max(num_gold + num_found, 1),
    }


def _count_answer(gold: Sequence[str], found: str) -> Sequence[float]:
    """Compare an answer with all correct answers; the best match counts."""
    squad = _import("torchmetrics.functional.text").squad
    answers = {"text": list(gold), "answer_start": [0] * len(gold)}
    got = squad({"id": "", "prediction_text": found}, {"id": "", "answers": answers})
    # torchmetrics scores two empty answers as SQuAD 2 does. In version 1.1, they share no word.
    has_words = bool(ARTICLES.sub(" ", found.lower().translate(PUNCTUATION)).split())
    return float(got["exact_match"]) / 100, has_words * float(got["f1"]) / 100, 1


def _total_answers(sums: Sequence[float]) -> dict[str, float]:
    exact, f1, num_all = sums
    return {"exact_match": exact / num_all, "f1": f1 / num_all}


def _count_clusters(gold: Iterable[Any], found: Iterable[Any]) -> Sequence[float]:
    """Count the numerators and denominators of recall and precision for three metrics.

    Documents share no mentions, so the counts of all three metrics add up over documents.
    """
    scores = _import("scorch.scores")
    sides = [[set(cluster) for cluster in side] for side in (gold, found)]
    links, mentions, clusters = (
        [sum(map(size, side)) for side in sides]
        for size in (lambda cluster: len(cluster) - 1, len, lambda cluster: 1)
    )
    has_common = bool(set.intersection(*(set().union(*side) for side in sides)))
    counts: list[float] = []
    for metric, sizes in (
        (scores.muc, links),
        (scores.b_cubed, mentions),
        (scores.ceaf_e, clusters),
    ):
        # scorch divides by zero if the sides have no mention in common.
        shares = metric(*sides)[:2] if has_common and all(sizes) else (0.0, 0.0)
        for share, size in zip(shares, sizes, strict=True):
            counts += [share * size, size]
    return counts


def _total_clusters(sums: Sequence[float]) -> dict[str, float]:
    scores: dict[str, float] = {}
    for row, name in enumerate(("muc", "b_cubed", "ceaf_e")):
        right, num_gold, also_right, num_found = sums[4 * row : 4 * row + 4]
        recall, precision = right / max(num_gold, 1), also_right / max(num_found, 1)
        scores[name] = 2 * recall * precision / max(recall + precision, 1e-12)
    return scores | {"conll": sum(scores.values()) / len(scores)}


def _import(name: str) -> Any:
    """Import a package that only scoring needs."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"Scoring this task needs the package {package}. Run pip install {package}."
        ) from error


# Share of correct labels.
ACCURACY = Metric(
    lambda gold, found: (gold == found, 1), lambda sums: {"accuracy": sums[0] / sums[1]}
)
# `precision`, `recall` and `f1` of spans over all sentences; bounds and label must be correct.
SPANS = Metric(_count_spans, _total_spans)
# `exact_match` and `f1` over words as in SQuAD 1.1, by torchmetrics' copy of the official script.
ANSWERS = Metric(_count_answer, _total_answers)
# F1 by `muc`, `b_cubed` and `ceaf_e` over all documents, and `conll`, their mean (Pradhan et al.
# 2014), by scorch.
CLUSTERS = Metric(_count_clusters, _total_clusters)

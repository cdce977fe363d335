"""Scores of predictions, as the field's programs count them."""

from collections.abc import Hashable, Iterable, Sequence
from importlib import import_module
from typing import Any


def score_accuracy(gold: Sequence[object], predicted: Sequence[object]) -> dict[str, float]:
    """Count how many labels are right.

    Args:
        gold: The right labels, at least one.
        predicted: As many.

    Returns:
        `accuracy`, from 0 to 1.
    """
    right = sum(a == b for a, b in zip(gold, predicted, strict=True))
    return {"accuracy": right / len(gold)}


def score_spans(
    gold: Sequence[Iterable[Hashable]], predicted: Sequence[Iterable[Hashable]]
) -> dict[str, float]:
    """Count how many spans are right, bounds and label, over all sentences at once.

    Args:
        gold: The right spans of each sentence.
        predicted: Those that were found.

    Returns:
        `precision`, `recall` and `f1`, their harmonic mean, from 0 to 1; 0 where there is nothing.
    """
    num_right = num_gold = num_found = 0
    for right, found in zip(map(set, gold), map(set, predicted), strict=True):
        num_right += len(right & found)
        num_gold += len(right)
        num_found += len(found)
    return {
        "precision": num_right / max(num_found, 1),
        "recall": num_right / max(num_gold, 1),
        "f1": 2 * num_right / max(num_gold + num_found, 1),
    }


def score_answers(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """Compare answers with the right ones as SQuAD's program does (torchmetrics' copy of it).

    Args:
        gold: The right answers of each question; the best match counts.
        predicted: The answers that were found.

    Returns:
        `exact_match`, the share of equal answers, and `f1` over words; from 0 to 1.

    Raises:
        ImportError: If torchmetrics is not installed.
    """
    squad = _import("torchmetrics.functional.text").squad
    found = [{"id": str(row), "prediction_text": text} for row, text in enumerate(predicted)]
    right = [
        {"id": str(row), "answers": {"text": list(texts), "answer_start": [0] * len(texts)}}
        for row, texts in enumerate(gold)
    ]
    return {name: float(score) / 100 for name, score in squad(found, right).items()}


def score_clusters(
    gold: Sequence[Sequence[Sequence[Hashable]]], predicted: Sequence[Sequence[Sequence[Hashable]]]
) -> dict[str, float]:
    """Compare clusters of mentions over all documents at once (Pradhan et al. 2014), by scorch.

    Args:
        gold: The right clusters of each document, each its mentions.
        predicted: Those that were found.

    Returns:
        F1 by `muc`, `b_cubed` and `ceaf_e`, and `conll`, their mean; from 0 to 1.

    Raises:
        ImportError: If scorch is not installed.
    """
    scores = _import("scorch.scores")
    right, found = (
        [
            {(row, mention) for mention in one}
            for row, document in enumerate(side)
            for one in document
        ]
        for side in (gold, predicted)
    )
    metrics = {"muc": scores.muc, "b_cubed": scores.b_cubed, "ceaf_e": scores.ceaf_e}
    if not right or not found:
        return dict.fromkeys([*metrics, "conll"], 0.0)
    each = {name: float(metric(right, found)[2]) for name, metric in metrics.items()}
    return each | {"conll": sum(each.values()) / len(each)}


def _import(name: str) -> Any:
    """Import a program that scores; only training needs them."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"Scoring this task needs the package {name.partition('.')[0]}: "
            "pip install 'spacy-elmo[train]'."
        ) from error

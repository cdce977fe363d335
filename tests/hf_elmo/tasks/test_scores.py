"""Scores against the field's own programs, where they are installed."""

import random

import pytest
from spacy import tokens
from spacy.scorer import get_ner_prf
from spacy.tokens import Doc
from spacy.training import Example
from spacy.vocab import Vocab

from hf_elmo.tasks.labels import Span, label_words
from hf_elmo.tasks.scores import ACCURACY, ANSWERS, CLUSTERS, SPANS

GOLD = [[Span("A", 0, 1), Span("B", 3, 3)], [], [Span("A", 0, 0)]]
FOUND = [[Span("A", 0, 1), Span("A", 3, 3)], [Span("B", 1, 2)], [Span("A", 0, 0)]]


def test_accuracy_is_the_share_of_right_labels() -> None:
    assert ACCURACY.score(["a", "b", "c"], ["a", "c", "c"]) == {"accuracy": 2 / 3}


def test_spans_count_over_all_sentences_at_once() -> None:
    assert SPANS.score(GOLD, FOUND) == {"precision": 0.5, "recall": 2 / 3, "f1": 4 / 7}


def test_no_spans_score_zero() -> None:
    assert SPANS.score([[]], [[]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_spans_score_as_spacy_s_scorer_does() -> None:
    vocab = Vocab()

    def make(spans: list[Span]) -> Doc:
        doc = Doc(vocab, words=["w"] * 4)
        doc.ents = [tokens.Span(doc, s.start, s.end + 1, s.label) for s in spans]
        return doc

    examples = [Example(make(found), make(gold)) for gold, found in zip(GOLD, FOUND, strict=True)]
    other = get_ner_prf(examples)
    got = SPANS.score(GOLD, FOUND)
    assert (other["ents_p"], other["ents_r"], other["ents_f"]) == pytest.approx(
        (got["precision"], got["recall"], got["f1"])
    )


def test_spans_score_as_nervaluate_does() -> None:
    nervaluate = pytest.importorskip("nervaluate")
    tags = [[label_words(spans, 4, "BIO") for spans in side] for side in (GOLD, FOUND)]
    evaluator = nervaluate.Evaluator(*tags, tags=["A", "B"], loader="list")
    strict = evaluator.evaluate()["overall"]["strict"]
    assert strict.f1 == pytest.approx(SPANS.score(GOLD, FOUND)["f1"])


def test_answers_score_as_squad_s_program_does() -> None:
    pytest.importorskip("torchmetrics")
    got = ANSWERS.score([["the cat", "a dog"], ["it"]], ["Cat.", "he said it"])
    assert got == pytest.approx({"exact_match": 0.5, "f1": (1 + 0.5) / 2})


def test_answers_without_words_share_none() -> None:
    assert ANSWERS.score([["%"]], ["The"]) == {"exact_match": 1.0, "f1": 0.0}


def test_clusters_count_over_all_documents_at_once() -> None:
    pytest.importorskip("scorch")
    gold = [[[(0, 0), (2, 3), (5, 5)]], [[(0, 0), (1, 1)]]]
    found = [[[(0, 0), (2, 3)]], [[(0, 0), (1, 1)]]]
    got = CLUSTERS.score(gold, found)
    assert got["muc"] == pytest.approx(2 * (2 / 3) * 1.0 / (2 / 3 + 1.0))
    b_cubed = ((2 * (2 / 3) + 2) / 5, 1.0)
    assert got["b_cubed"] == pytest.approx(2 * b_cubed[0] * b_cubed[1] / sum(b_cubed))
    assert got["conll"] == pytest.approx((got["muc"] + got["b_cubed"] + got["ceaf_e"]) / 3)


def test_no_clusters_score_zero() -> None:
    pytest.importorskip("scorch")
    assert CLUSTERS.score([[[(0, 0), (1, 1)]]], [[]])["conll"] == 0.0


def test_clusters_without_common_mentions_score_zero() -> None:
    for found in ([[(2, 2), (3, 3)]], [[(2, 2), (3, 3)], [(4, 4), (5, 5)]]):
        scores = CLUSTERS.score([[[(0, 0), (1, 1)]]], [found])
        assert set(scores.values()) == {0.0}


def test_clusters_score_as_scorch_scores_all_documents_as_one() -> None:
    scorch = pytest.importorskip("scorch.scores")
    rng = random.Random(0)

    def make_clusters() -> list[list[int]]:
        mentions = rng.sample(range(20), 15)
        return [mentions[start : start + 3] for start in range(0, 15, 3)]

    gold, found = ([make_clusters() for _ in range(4)] for _ in range(2))
    sides = [
        [{(row, mention) for mention in one} for row, each in enumerate(side) for one in each]
        for side in (gold, found)
    ]
    got = CLUSTERS.score(gold, found)
    for name in ("muc", "b_cubed", "ceaf_e"):
        assert got[name] == pytest.approx(getattr(scorch, name)(*sides)[2])
    assert got["conll"] == pytest.approx(scorch.conll2012(*sides))

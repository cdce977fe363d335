"""Coreference by end-to-end spans."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from hf_elmo.tasks import coref
from hf_elmo.tasks.coref import (
    ElmoForCoref,
    bucket_distances,
    compute_loss,
    find_clusters,
    link_mentions,
)

PAPER = {"static_vocab_size": 5, "static_size": 300}


def test_the_paper_s_preset_has_its_shapes(make_case: Callable[..., Any]) -> None:
    model = make_case("coref", "paper", elmo_at="none", **PAPER).model
    words = 300 + 100
    count = sum(weight.numel() for weight in model.encoder.parameters())
    assert count == 2 * 4 * 200 * (words + 200 + 2)
    assert model.spans.output_size == 1220
    pair = [model.span_input, model.antecedent_input, model.product_input, model.distance_input]
    assert sum(linear.in_features for linear in pair) == 3680
    assert {linear.out_features for linear in pair} == {150}


def list_right(row: int, clusters: list[int], antecedents: int) -> list[int]:
    """Columns of a span's right antecedents; 0 is the dummy."""
    backs = range(1, antecedents + 1)
    same = [b for b in backs if row >= b and clusters[row] == clusters[row - b] >= 0]
    return same or [0]


def test_the_loss_equals_the_enumeration_of_antecedents() -> None:
    torch.manual_seed(0)
    clusters = [0, 1, -1, 0, -1, 1, 0]
    logits = torch.randn(7, 4, dtype=torch.float64)
    logits[:, 0] = 0.0
    for row in range(7):
        logits[row, row + 1 :] = -torch.inf
    expected = 0.0
    for row in range(7):
        weights = [math.exp(x) for x in logits[row].tolist()]
        right = sum(weights[column] for column in list_right(row, clusters, 3))
        expected -= math.log(right / sum(weights))
    assert_close(float(compute_loss(logits, torch.tensor(clusters))), expected)


def test_the_loss_s_gradients_are_right() -> None:
    clusters = torch.tensor([0, 1, 0, -1, 1])
    before = torch.arange(5)[:, None] - torch.arange(1, 4)

    def compute(scores: Tensor) -> Tensor:
        logits = nn.functional.pad(scores.masked_fill(before < 0, -torch.inf), (1, 0))
        return compute_loss(logits, clusters)

    scores = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(compute, (scores,))


def score_slowly(model: ElmoForCoref, spans: Tensor, mentions: Tensor) -> Tensor:
    """Pair by pair, with one layer over all that is put side by side."""
    parts = [model.span_input, model.antecedent_input, model.product_input, model.distance_input]
    weight = torch.cat([part.weight for part in parts], dim=1)
    logits = torch.full((len(spans), 1 + model.config.max_antecedents), -torch.inf).double()
    logits[:, 0] = 0.0
    for i in range(len(spans)):
        for back in range(1, min(i, model.config.max_antecedents) + 1):
            distance = model.distances(bucket_distances(torch.tensor([back])))[0]
            g_i, g_j = spans[i], spans[i - back]
            pair = torch.cat([g_i, g_j, g_i * g_j, distance])
            hidden = weight @ pair + model.span_input.bias
            score = model.pair_output(hidden)[0] + mentions[i] + mentions[i - back]
            logits[i, back] = score
    return logits


def test_antecedents_are_scored_by_the_equation(
    make_case: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coref, "SPANS_AT_ONCE", 3)
    model = make_case("coref", max_antecedents=4).model.double()
    spans = torch.randn(8, model.spans.output_size, dtype=torch.float64)
    mentions = torch.randn(8, dtype=torch.float64)
    got = model._score_antecedents(spans, mentions)
    assert_close(got, score_slowly(model, spans, mentions))


def test_distances_fall_into_ten_buckets() -> None:
    steps = torch.tensor([1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 63, 64, 500])
    assert bucket_distances(steps).tolist() == [1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9]


def test_spans_know_their_clusters() -> None:
    mentions = torch.tensor([[0, 2, 0], [5, 5, 1]])
    got = find_clusters(torch.tensor([0, 0, 5]), torch.tensor([1, 2, 5]), mentions)
    assert got.tolist() == [-1, 0, 1]


def test_links_become_clusters() -> None:
    mentions = [(row, row) for row in range(6)]
    clusters = link_mentions(mentions, [0, 1, 0, 2, 1, 3])
    assert clusters == [[(0, 0), (1, 1), (3, 3), (4, 4)], [(2, 2), (5, 5)]]


def test_long_documents_are_cut_in_training(make_case: Callable[..., Any]) -> None:
    case = make_case("coref", max_training_sentences=2, spans_per_word=9.0, max_span_width=3)
    batch = case.make_batch([1])
    case.model.train()
    torch.manual_seed(0)
    sizes = {len(case.model(**batch).starts) for _ in range(8)}
    case.model.eval()
    assert len(case.model(**batch).starts) > max(sizes)
    assert len(sizes) == 2  # the first sentence is shorter than the others


def test_mentions_move_with_the_cut(
    make_case: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case("coref", max_training_sentences=2, spans_per_word=9.0, max_span_width=3)
    found: list[list[int]] = []

    def note(starts: Tensor, ends: Tensor, mentions: Tensor) -> Tensor:
        found.append(mentions.tolist())
        return find_clusters(starts, ends, mentions)

    monkeypatch.setattr(coref, "find_clusters", note)
    monkeypatch.setattr(torch, "randint", lambda *_: torch.tensor(1))
    case.model.train()(**case.make_batch([1]))
    assert found == [[[0, 2, 0], [5, 5, 0], [7, 9, 0], [-2, -2, 1], [3, 3, 1]]]


def test_each_part_of_a_long_document_is_read_in_training(
    make_case: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case("coref", max_training_sentences=2, max_span_width=3)
    firsts: set[int] = set()

    def note(starts: Tensor, ends: Tensor, mentions: Tensor) -> Tensor:
        firsts.add(int(mentions[0, 0]))
        return find_clusters(starts, ends, mentions)

    monkeypatch.setattr(coref, "find_clusters", note)
    torch.manual_seed(0)
    case.model.train()
    for _ in range(8):
        case.model(**case.make_batch([1]))
    assert firsts == {3, 0}  # from the first of three sentences, and from the second


def test_a_document_of_few_words_can_be_trained_on(make_case: Callable[..., Any]) -> None:
    case = make_case("coref", spans_per_word=0.01)
    out = case.model.train()(**case.make_batch([0]))
    out.loss.backward()
    assert len(out.starts) == 1


def test_several_documents_are_refused(make_case: Callable[..., Any]) -> None:
    case = make_case("coref")
    mask = torch.ones(2, 1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="Expected one document"):
        case.model(attention_mask=mask)

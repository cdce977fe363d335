"""The tagger of named entities."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch.testing import assert_close

from hf_elmo.tasks.labels import Span

PAPER = {"static_vocab_size": 5, "static_size": 50}


def test_the_paper_s_preset_has_its_shapes(make_case: Callable[..., Any]) -> None:
    model = make_case("ner", "paper", elmo_at="none", **PAPER).model
    words = 50 + 128  # static vectors and filters over characters
    layers = [2 * 4 * 200 * (width + 200 + 2) for width in (words, 400)]
    assert sum(weight.numel() for weight in model.encoder.parameters()) == sum(layers)
    labels = 1 + 2 * 4  # BIOUL of two types
    assert model.classifier.weight.shape == (labels, 400)
    assert model.crf.transitions.shape == (labels, labels)
    assert model.characters.convolution.weight.shape == (128, 16, 3)


def test_the_loss_is_the_sum_of_negative_log_likelihoods(make_case: Callable[..., Any]) -> None:
    case = make_case("ner", elmo={"mix_l2": 0.0})
    batch = case.make_batch([0, 1])
    out = case.model(**batch)
    mask = batch["attention_mask"].bool()
    assert_close(out.loss, -case.model.crf(out.logits, batch["labels"], mask).sum())


def test_predictions_are_spans_whatever_the_scores(make_case: Callable[..., Any]) -> None:
    case = make_case("ner")
    with torch.no_grad():
        case.model.classifier.weight.normal_(std=100)
    batch = case.make_batch([0, 1])
    del batch["labels"]
    for spans in case.model.predict(**batch):
        assert spans == sorted(spans, key=lambda span: span.start)
        assert all(a.end < b.start for a, b in itertools.pairwise(spans))


def test_training_data_learned_by_heart_is_found(make_case: Callable[..., Any]) -> None:
    case = make_case("ner", dropout=0.0)
    optimizer = torch.optim.Adam(case.model.parameters(), lr=0.03)
    batch = case.make_batch([0, 1])
    for _ in range(60):
        optimizer.zero_grad()
        case.model(**batch).loss.backward()
        optimizer.step()
    del batch["labels"]
    assert case.model.predict(**batch) == [[Span("A", 0, 2), Span("B", 5, 5)], []]

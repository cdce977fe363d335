"""The labeller of semantic roles."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from hf_elmo.tasks.labels import Span
from hf_elmo.tasks.readers import Frame
from hf_elmo.tasks.srl import SrlTask, join_arguments

PAPER = {"static_vocab_size": 5, "static_size": 100}


def test_the_paper_s_preset_has_its_shapes(make_case: Callable[..., Any]) -> None:
    model = make_case("srl", "paper", elmo_at="none", **PAPER).model
    layers = list(model.encoder.layers)
    assert [layer.is_reversed for layer in layers] == [False, True] * 4
    widths = [200, *[300] * 7]  # static vector and predicate indicator, then the layer below
    for width, layer in zip(widths, layers, strict=True):
        count = sum(weight.numel() for weight in layer.parameters())
        assert count == 6 * 300 * (width + 1) + 5 * 300 * (300 + 1)
    assert model.classifier.weight.shape[1] == 300


def test_the_loss_is_the_mean_over_sentences(make_case: Callable[..., Any]) -> None:
    case = make_case("srl", elmo={"mix_l2": 0.0})
    batch = case.make_batch([0, 1])
    out = case.model(**batch)
    each = [
        F.cross_entropy(out.logits[row, :length], batch["labels"][row, :length])
        for row, length in enumerate([7, 3])
    ]
    assert_close(out.loss, torch.stack(each).mean())


def test_the_predicate_is_marked(make_case: Callable[..., Any]) -> None:
    case = make_case("srl")
    batch = case.make_batch([0])
    first = case.model(**batch).logits
    second = case.model(**batch | {"predicates": batch["predicates"] + 1}).logits
    assert (first != second).any()


def test_missing_predicates_are_an_error(make_case: Callable[..., Any]) -> None:
    case = make_case("srl")
    batch = case.make_batch([0])
    del batch["predicates"]
    with pytest.raises(ValueError, match="Expected predicates, the number of a word"):
        case.model(**batch)


@pytest.mark.parametrize("place", [-1, 99])
def test_predicates_outside_of_their_sentence_are_an_error(
    place: int, make_case: Callable[..., Any]
) -> None:
    case = make_case("srl")
    batch = case.make_batch([0])
    batch["predicates"][0] = place
    with pytest.raises(ValueError, match="Expected predicates inside their sentences"):
        case.model(**batch)


def test_roles_follow_the_scheme_whatever_the_scores(make_case: Callable[..., Any]) -> None:
    case = make_case("srl")
    inside = case.model.config.label2id["I-ARG1"]
    with torch.no_grad():
        case.model.classifier.bias[inside] = 50.0
    batch = case.make_batch([0])
    del batch["labels"]
    (spans,) = case.model.predict(**batch)
    assert spans == [Span("ARG1", 0, 6)]


def test_arguments_are_scored_with_all_their_parts() -> None:
    spans = [Span("A0", 0, 1), Span("C-V", 3, 3), Span("C-A0", 5, 6), Span("C-A2", 7, 7)]
    expected = [("A0", ((0, 1), (5, 6))), ("A2", ((7, 7),))]
    assert join_arguments(spans) == expected
    frame = Frame(["w"] * 8, 2, spans)
    assert SrlTask().score([frame], [spans[:1]])["f1"] == 0
    assert SrlTask().score([frame], [spans[2:]])["recall"] == 0.5
    assert SrlTask().score([frame], [[spans[0], *spans[2:]]])["f1"] == 1


def test_a_part_continues_the_last_argument_before_it_in_whatever_order_they_are() -> None:
    spans = [Span("C-A0", 6, 6), Span("A0", 4, 4), Span("A0", 0, 0)]
    assert join_arguments(spans) == [("A0", ((0, 0),)), ("A0", ((4, 4), (6, 6)))]


def test_the_predicate_begins_a_span_of_its_own(make_case: Callable[..., Any]) -> None:
    case = make_case("srl")
    labels = case.make_batch([1])["labels"][0].tolist()
    assert [case.model.config.id2label[row] for row in labels] == ["O", "B-V", "O"]


def test_an_argument_that_holds_the_predicate_is_kept(make_case: Callable[..., Any]) -> None:
    config = make_case("srl").model.config
    frame = Frame(["a", "b"], 1, [Span("ARG1", 0, 1)])
    labels = SrlTask().label([frame], config)["labels"][0].tolist()
    assert [config.id2label[row] for row in labels] == ["B-ARG1", "I-ARG1"]

"""The biattentive classification network."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.testing import assert_close

from hf_elmo.tasks.sentiment import Maxout

PAPER = {"static_vocab_size": 5, "static_size": 300}


def count(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def test_the_paper_s_preset_has_its_shapes(make_case: Callable[..., Any]) -> None:
    model = make_case("sentiment", "paper", elmo_at="none", **PAPER).model
    assert model.input_linear.weight.shape == (300, 300)
    assert count(model.encoder) == 2 * 4 * 300 * (300 + 300 + 2)
    assert count(model.integrator) == 2 * 4 * 300 * (1800 + 300 + 2)
    shapes = [layer.linear.weight.shape for layer in model.output_layers]
    assert shapes == [(4 * 1200, 2400), (4 * 600, 1200), (4 * 2, 600)]  # two labels here


def test_attention_and_pooling_are_their_equations(make_case: Callable[..., Any]) -> None:
    model = make_case("sentiment").model.double()
    h = torch.randn(1, 4, 12, dtype=torch.float64)
    pooled = model._pool(h, torch.ones(1, 4, dtype=torch.bool))[0]
    words = h[0]
    shares = (words @ model.pooling_linear.weight[0] + model.pooling_linear.bias).softmax(0)
    parts = [words.max(0).values, words.min(0).values, words.mean(0), shares @ words]
    assert_close(pooled, torch.cat(parts))


def test_labels_are_numbered_in_their_order(make_case: Callable[..., Any]) -> None:
    assert make_case("sentiment").model.config.id2label == {0: "0", 1: "3"}


def test_the_paper_s_preset_drops_words_as_published_with_elmo_and_without(
    make_case: Callable[..., Any],
) -> None:
    paper = partial(make_case, "sentiment", "paper", **PAPER)
    assert paper().model.config.input_dropout == 0.5
    assert paper(elmo_at="none").model.config.input_dropout == 0.25
    assert paper(input_dropout=0.0).model.config.input_dropout == 0.0


def test_small_models_drop_as_many_words_with_elmo_as_without(
    make_case: Callable[..., Any],
) -> None:
    twin = make_case("sentiment", elmo_at="none", static_vocab_size=5, static_size=3)
    assert make_case("sentiment").model.config.input_dropout == 0.25
    assert twin.model.config.input_dropout == 0.25


def test_each_number_is_the_largest_of_its_pieces() -> None:
    torch.manual_seed(0)
    layer = Maxout(4, 3, 2)
    x = torch.randn(5, 4)
    weight, bias = layer.linear.weight, layer.linear.bias
    for k in range(3):
        pieces = [x @ weight[2 * k + j] + bias[2 * k + j] for j in range(2)]
        assert_close(layer(x)[:, k], torch.maximum(*pieces))

"""The reader of questions and passages."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from hf_elmo.tasks.squad import find_best_spans

PAPER = {"static_vocab_size": 5, "static_size": 300}


def count(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def count_gru(width: int, size: int) -> int:
    return 2 * 3 * size * (width + size + 2)


def test_the_paper_s_preset_has_its_shapes(make_case: Callable[..., Any]) -> None:
    model = make_case("squad", "paper", elmo_at="none", **PAPER).model
    assert count(model.encoder) == count_gru(300 + 100, 90)
    assert model.merge.weight.shape == (180, 4 * 180)
    assert count(model.residual_encoder) == count_gru(180, 90)
    assert model.residual_merge.weight.shape == (180, 3 * 180)
    assert count(model.start_encoder) == count_gru(180, 90)
    assert count(model.end_encoder) == count_gru(360, 90)
    assert count(model.attention) == 3 * 180
    assert count(model.self_attention) == 3 * 180 + 1


def test_elmo_at_the_output_comes_before_the_attention(make_case: Callable[..., Any]) -> None:
    model = make_case("squad", "paper", **PAPER).model
    assert model.config.elmo_at == "both"
    assert model.merge.weight.shape == (180, 4 * (180 + model.config.bilm.hidden_size))


def test_the_loss_is_the_sum_of_both_bounds(make_case: Callable[..., Any]) -> None:
    case = make_case("squad")
    batch = case.make_batch([0, 1])
    out = case.model(**batch)
    starts = F.cross_entropy(out.start_logits, torch.tensor([1, 1]))
    ends = F.cross_entropy(out.end_logits, torch.tensor([2, 1]))
    assert_close(out.loss, starts + ends)


def test_an_answer_is_as_probable_as_its_first_and_its_last_word(
    make_case: Callable[..., Any],
) -> None:
    case = make_case("squad")
    batch = case.make_batch([0, 1])
    with torch.no_grad():
        out, ranked = case.model(**batch), case.model.rank(**batch)
    starts, ends = out.start_logits.softmax(1), out.end_logits.softmax(1)
    for row, (start, end, score) in enumerate(ranked):
        assert score == pytest.approx(float(starts[row, start] * ends[row, end]))


def test_sums_of_scores_in_half_precision_are_not_rounded() -> None:
    starts, ends = torch.tensor([[20.0, 0.0]]), torch.tensor([[1.0, 1.0625]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    found = find_best_spans(starts.bfloat16(), ends.bfloat16(), mask, 2)
    assert [int(x) for x in found] == [0, 1]

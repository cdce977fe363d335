import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hf_elmo.language_model import losses
from hf_elmo.language_model.losses import (
    draw_log_uniform,
    full_softmax_losses,
    log_expected_count,
    sampled_softmax_losses,
)

VOCAB_SIZE = 50


def make_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(33, 8, generator=generator)
    targets = torch.randint(VOCAB_SIZE, (33,), generator=generator)
    weight = torch.randn(VOCAB_SIZE, 8, generator=generator)
    bias = torch.randn(VOCAB_SIZE, generator=generator)
    return hidden.requires_grad_(), targets, weight.requires_grad_(), bias.requires_grad_()


def gradients(loss: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    factors = torch.linspace(-1, 2, len(loss))  # every row has a gradient of its own
    return torch.autograd.grad((loss * factors).sum(), parameters)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "LOGITS_PER_CHUNK", 200)
    monkeypatch.setattr(losses, "MIN_ROWS_PER_CHUNK", 2)


def test_the_full_softmax_and_its_gradients_are_those_of_cross_entropy() -> None:
    hidden, targets, weight, bias = make_inputs()

    loss = full_softmax_losses(hidden, targets, weight, bias)

    expected = F.cross_entropy(F.linear(hidden, weight, bias), targets, reduction="none")
    torch.testing.assert_close(loss, expected)
    for mine, theirs in zip(
        gradients(loss, hidden, weight, bias),
        gradients(expected, hidden, weight, bias),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_no_more_than_a_chunk_of_logits_is_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, targets, weight, bias = make_inputs()
    sizes = []
    make_logits = losses._logits

    def watch(*arguments: Tensor) -> Tensor:
        logits = make_logits(*arguments)
        sizes.append(logits.numel())
        return logits

    monkeypatch.setattr(losses, "_logits", watch)
    full_softmax_losses(hidden, targets, weight, bias).sum().backward()

    assert max(sizes) <= 200
    assert sum(sizes) == 2 * 33 * VOCAB_SIZE  # once forth, once back


def sampled_reference(
    hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor, negatives: Tensor, draws: Tensor
) -> Tensor:
    """tf.nn.sampled_softmax_loss, written out."""
    true = (hidden * weight[targets]).sum(1) + bias[targets]
    true = true - log_expected_count(targets, draws, VOCAB_SIZE)
    sampled = hidden @ weight[negatives].T + bias[negatives]
    sampled = sampled - log_expected_count(negatives, draws, VOCAB_SIZE)
    sampled = sampled.masked_fill(targets[:, None] == negatives, -1e30)
    logits = torch.cat([true[:, None], sampled], dim=1)
    return F.cross_entropy(logits, torch.zeros_like(targets), reduction="none")


def test_the_sampled_softmax_is_tensorflows() -> None:
    hidden, targets, weight, bias = make_inputs()
    negatives, draws = draw_log_uniform(20, VOCAB_SIZE, torch.Generator().manual_seed(7))

    loss = sampled_softmax_losses(
        hidden,
        targets,
        weight,
        bias,
        num_negatives=20,
        generator=torch.Generator().manual_seed(7),
    )

    assert torch.isin(targets, negatives).any()  # there are accidental hits
    expected = sampled_reference(hidden, targets, weight, bias, negatives, draws)
    torch.testing.assert_close(loss, expected)
    for mine, theirs in zip(
        gradients(loss, hidden, weight, bias),
        gradients(expected, hidden, weight, bias),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_the_sampled_softmax_in_bfloat16_is_near_that_in_float32() -> None:
    hidden, targets, weight, bias = make_inputs()

    def compute() -> Tensor:
        generator = torch.Generator().manual_seed(7)
        return sampled_softmax_losses(
            hidden, targets, weight, bias, num_negatives=20, generator=generator
        )

    with torch.autocast("cpu", torch.bfloat16):
        loss = compute()

    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, compute(), rtol=0.02, atol=0.05)
    assert all(torch.isfinite(x).all() for x in gradients(loss, hidden, weight, bias))


def test_negatives_are_distinct_rows_of_the_vocabulary() -> None:
    rows, draws = draw_log_uniform(40, VOCAB_SIZE, torch.Generator().manual_seed(0))

    assert len(rows.unique()) == 40
    assert rows.min() >= 0
    assert rows.max() < VOCAB_SIZE
    assert draws >= 40


def test_the_number_of_draws_is_that_up_to_the_last_new_row() -> None:
    generator = torch.Generator().manual_seed(3)
    uniform = torch.rand(80, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    drawn = [int((VOCAB_SIZE + 1) ** u) - 1 for u in uniform.tolist()]
    distinct = list(dict.fromkeys(drawn))[:20]

    rows, draws = draw_log_uniform(20, VOCAB_SIZE, generator)

    assert rows.tolist() == distinct
    assert int(draws) == drawn.index(distinct[-1]) + 1


def test_rows_are_drawn_as_often_as_expected() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(VOCAB_SIZE)
    expected = torch.zeros(VOCAB_SIZE)
    for _ in range(2000):
        rows, draws = draw_log_uniform(10, VOCAB_SIZE, generator)
        counts[rows] += 1
        expected += log_expected_count(torch.arange(VOCAB_SIZE), draws, VOCAB_SIZE).exp()

    # Five standard deviations of a count, and the bias of counting draws until the last new one.
    assert ((counts - expected).abs() < 5 * expected.sqrt() + 0.05 * expected).all()


def test_the_expected_count_is_the_formula_of_tensorflow() -> None:
    draws = torch.tensor(30)

    value = log_expected_count(torch.tensor([4]), draws, VOCAB_SIZE)

    probability = math.log(6 / 5) / math.log(VOCAB_SIZE + 1)
    assert value.item() == pytest.approx(math.log(1 - (1 - probability) ** 30), rel=1e-6)


@pytest.mark.parametrize("count", [0, VOCAB_SIZE, VOCAB_SIZE + 1])
def test_as_many_negatives_as_words_are_an_error(count: int) -> None:
    with pytest.raises(ValueError, match=f"from 1 to vocab_size - 1 = 49, got {count}"):
        draw_log_uniform(count, VOCAB_SIZE, torch.Generator())


def test_a_sure_prediction_in_bfloat16_has_no_loss_below_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(200, 16, generator=generator)
    weight = 2 * torch.randn(VOCAB_SIZE, 16, generator=generator)
    targets = (hidden @ weight.T).argmax(dim=1)

    with torch.autocast("cpu", torch.bfloat16):
        loss = full_softmax_losses(hidden, targets, weight, torch.zeros(VOCAB_SIZE))

    assert loss.min() >= 0
    expected = F.cross_entropy(hidden @ weight.T, targets, reduction="none")
    torch.testing.assert_close(loss, expected, rtol=0.02, atol=0.1)


def test_a_single_negative_that_is_the_target_gives_finite_gradients() -> None:
    hidden, _, weight, bias = make_inputs()
    negatives, _ = draw_log_uniform(1, VOCAB_SIZE, torch.Generator().manual_seed(7))

    loss = sampled_softmax_losses(
        hidden,
        negatives.expand(len(hidden)),
        weight,
        bias,
        num_negatives=1,
        generator=torch.Generator().manual_seed(7),
    )

    assert not loss.any()
    assert not any(x.any() for x in gradients(loss, hidden, weight, bias))

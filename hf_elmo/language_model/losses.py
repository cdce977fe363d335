"""Losses of the language model: the full softmax, in chunks, or TensorFlow's sampled softmax."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Logits per chunk, so that a chunk fits into the CPU cache. A chunk has at least 64 rows, because
# with fewer rows most of the time is spent on reading the weights.
LOGITS_PER_CHUNK = 2**20
MIN_ROWS_PER_CHUNK = 64  # 203 MB of logits for the 793,471 words of the original softmax


class _LogSumExp(torch.autograd.Function):
    """`logsumexp(hidden @ weight^T + bias)` of each row, computed in chunks of logits.

    The backward pass recomputes the logits.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor) -> Tensor:
        sums = [
            _logits(rows, banned, weight, bias).logsumexp(dim=1)
            for rows, banned in _split_rows(len(weight), hidden, excluded)
        ]
        result = torch.cat([hidden.new_empty(0, dtype=torch.float32), *sums])
        ctx.save_for_backward(hidden, weight, bias, excluded, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        hidden, weight, bias, excluded, result = ctx.saved_tensors
        hidden_gradients = []
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        bias_gradient = torch.zeros_like(bias, dtype=torch.float32)
        # The sum over no column is -inf, and -inf - -inf would be NaN.
        result = result.clamp(min=torch.finfo(result.dtype).min)
        chunks = _split_rows(len(weight), hidden, excluded, result, gradient)
        for rows, banned, sums, factor in chunks:
            shares = _logits(rows, banned, weight, bias).sub_(sums[:, None]).exp_()
            shares.mul_(factor[:, None])
            bias_gradient += shares.sum(dim=0)
            shares = shares.to(hidden.dtype)
            hidden_gradients.append(shares @ weight)
            weight_gradient += shares.T @ rows
        return (
            torch.cat([hidden[:0], *hidden_gradients]),
            weight_gradient.to(weight.dtype),
            bias_gradient.to(bias.dtype),
            None,
        )


def _split_rows(num_columns: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    rows = max(MIN_ROWS_PER_CHUNK, LOGITS_PER_CHUNK // num_columns)
    return zip(*(tensor.split(rows) for tensor in tensors), strict=True)


def _logits(hidden: Tensor, excluded: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute logits in float32; set column `excluded[row]` of each row to -inf (-1: no column)."""
    logits = F.linear(hidden, weight).float().add_(bias)
    hits = (excluded >= 0).nonzero().squeeze(1)
    logits[hits, excluded[hits]] = -torch.inf
    return logits


def _log_sum_exp(hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor) -> Tensor:
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    return _LogSumExp.apply(hidden, weight, bias, excluded)  # type: ignore[no-untyped-call]  # torch's


def _target_logits(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.linalg.vecdot(hidden.float(), weight.float()) + bias


def full_softmax_losses(hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `-log p(target)` over the complete vocabulary.

    Args:
        hidden: Outputs of the top layer, shape `(words, projection_size)`.
        targets: Vocabulary row of each target, shape `(words,)`.
        weight: Softmax weight, shape `(vocab_size, projection_size)`.
        bias: Softmax bias, shape `(vocab_size,)`.

    Returns:
        Losses in nats, shape `(words,)`.
    """
    # Not the sum over all words minus the target's logit: logits in bfloat16 are rounded, the
    # target's is not, and the difference of almost equal numbers can be below 0.
    sums = _log_sum_exp(hidden, weight, bias, targets)
    return F.softplus(sums - _target_logits(hidden, F.embedding(targets, weight), bias[targets]))


def draw_log_uniform(
    count: int, vocab_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw distinct rows of the vocabulary from TensorFlow's log-uniform distribution.

    Row `k` has the probability `P(k) = log((k + 2) / (k + 1)) / log(vocab_size + 1)`. Draws are
    repeated until `count` distinct rows are found (tf.random.log_uniform_candidate_sampler,
    `unique=True`).

    Args:
        count: Number of distinct rows to draw.
        vocab_size: Number of rows of the vocabulary.
        generator: Random generator on the CPU.

    Returns:
        The rows, shape `(count,)`, and the number of draws, a scalar.

    Raises:
        ValueError: If `count` is not smaller than `vocab_size`.
    """
    if not 0 < count < vocab_size:
        raise ValueError(
            f"Expected a number of negatives from 1 to vocab_size - 1 = {vocab_size - 1}, got "
            f"{count}. With so small a vocabulary, use the full softmax."
        )
    drawn = torch.empty(0, dtype=torch.long)
    while True:
        uniform = torch.rand(4 * count, generator=generator, dtype=torch.float64)
        # (vocab_size + 1) ** u is log-uniform from 1; clamp the last row, since it can round up.
        more = ((vocab_size + 1) ** uniform).long().sub_(1).clamp_(max=vocab_size - 1)
        drawn = torch.cat([drawn, more])
        _, inverse = drawn.unique(return_inverse=True)
        first = torch.full((int(inverse.max()) + 1,), len(drawn))
        first.scatter_reduce_(0, inverse, torch.arange(len(drawn)), "amin")
        if len(first) >= count:
            places = first.sort().values[:count]
            return drawn[places], places[-1] + 1


def log_expected_count(rows: Tensor, num_draws: Tensor, vocab_size: int) -> Tensor:
    """Compute `log(1 - (1 - P(row)) ^ num_draws)`, the log of a row's expected count.

    Args:
        rows: Rows of the vocabulary, any shape. `draw_log_uniform` defines their probability `P`.
        num_draws: Number of draws, a scalar.
        vocab_size: Number of rows of the vocabulary.

    Returns:
        A float32 tensor with the shape of `rows`.
    """
    k = rows.double()
    probability = torch.log((k + 2) / (k + 1)) / torch.log(torch.tensor(vocab_size + 1.0).double())
    return torch.log(-torch.expm1(num_draws * torch.log1p(-probability))).float()


def sampled_softmax_losses(
    hidden: Tensor,
    targets: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    num_negatives: int,
    generator: torch.Generator,
) -> Tensor:
    """Estimate `-log p(target)` from the target and from random words, the negatives.

    All targets share the negatives. As in tf.nn.sampled_softmax_loss, the log of each row's
    expected count is subtracted from its logit, and negatives that equal the target are ignored.
    The loss is on average lower than that of the full softmax.

    Args:
        hidden: Outputs of the top layer, shape `(words, projection_size)`.
        targets: Vocabulary row of each target, shape `(words,)`.
        weight: Softmax weight, shape `(vocab_size, projection_size)`.
        bias: Softmax bias, shape `(vocab_size,)`.
        num_negatives: Number of negatives.
        generator: Random generator on the CPU.

    Returns:
        Losses in nats, shape `(words,)`.
    """
    vocab_size = len(weight)
    negatives, num_draws = draw_log_uniform(num_negatives, vocab_size, generator)
    negatives, num_draws = negatives.to(targets.device), num_draws.to(targets.device)
    rows = torch.cat([targets, negatives])
    row_weight = F.embedding(rows, weight)  # a single gather gives a single dense gradient
    row_bias = bias[rows] - log_expected_count(rows, num_draws, vocab_size)
    target_weight, negative_weight = row_weight.split([len(targets), num_negatives])
    target_bias, negative_bias = row_bias.split([len(targets), num_negatives])
    columns = torch.full((vocab_size,), -1, device=targets.device)
    columns[negatives] = torch.arange(num_negatives, device=targets.device)
    sums = _log_sum_exp(hidden, negative_weight, negative_bias, columns[targets])
    return F.softplus(sums - _target_logits(hidden, target_weight, target_bias))

"""Losses of the language model: the full softmax, in chunks, and TensorFlow's sampled softmax."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

LOGITS_PER_CHUNK = 2**24  # logits in memory at a time: 64 MiB in float32, at any vocabulary size


def _split_rows(hidden: Tensor, vocab_size: int, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    rows = max(1, LOGITS_PER_CHUNK // vocab_size)
    return zip(*(tensor.split(rows) for tensor in (hidden, *others)), strict=True)


def _cross_entropy(hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight, bias).float(), targets, reduction="none")


def full_softmax_losses(hidden: Tensor, targets: Tensor, softmax: nn.Linear) -> Tensor:
    """Compute `-log p(target)` over the whole vocabulary.

    Logits are made `LOGITS_PER_CHUNK` at a time, and once more for the gradient.

    Args:
        hidden: Outputs of the top layer, shape `(words, projection_size)`.
        targets: Rows of the vocabulary, shape `(words,)`.
        softmax: Weight `(vocab_size, projection_size)` and bias.

    Returns:
        Losses in nats, shape `(words,)`.
    """
    losses = [
        checkpoint(_cross_entropy, *chunk, softmax.weight, softmax.bias, use_reentrant=False)
        if torch.is_grad_enabled()
        else _cross_entropy(*chunk, softmax.weight, softmax.bias)
        for chunk in _split_rows(hidden, softmax.out_features, targets)
    ]
    return torch.cat(losses)


def draw_log_uniform(
    count: int, vocab_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw distinct rows of the vocabulary, low ones more often, as TensorFlow does.

    `P(k) = log((k + 2) / (k + 1)) / log(vocab_size + 1)`, drawn until `count` distinct ones are
    found (tf.random.log_uniform_candidate_sampler, `unique=True`).

    Args:
        count: Rows to draw.
        vocab_size: Rows there are.
        generator: Source of chance, on the CPU.

    Returns:
        The rows, shape `(count,)`; and the number of draws that it took, a scalar.

    Raises:
        ValueError: If there are not more rows than are to be drawn.
    """
    if not 0 < count < vocab_size:
        raise ValueError(
            f"Expected a number of negatives from 1 to vocab_size - 1 = {vocab_size - 1}, got "
            f"{count}. With so small a vocabulary, use the full softmax."
        )
    drawn = torch.empty(0, dtype=torch.long)
    while True:
        uniform = torch.rand(4 * count, generator=generator, dtype=torch.float64)
        # (vocab_size + 1) ** u is log-uniform from 1; its last row is taken in when it rounds up.
        more = ((vocab_size + 1) ** uniform).long().sub_(1).clamp_(max=vocab_size - 1)
        drawn = torch.cat([drawn, more])
        _, inverse = drawn.unique(return_inverse=True)
        first = torch.full((int(inverse.max()) + 1,), len(drawn))
        first.scatter_reduce_(0, inverse, torch.arange(len(drawn)), "amin")
        if len(first) >= count:
            places = first.sort().values[:count]
            return drawn[places], places[-1] + 1


def log_expected_count(rows: Tensor, num_draws: Tensor, vocab_size: int) -> Tensor:
    """Compute `log(1 - (1 - P(row)) ^ num_draws)`: the log of how often a row is among the drawn.

    Args:
        rows: Rows of the vocabulary, any shape.
        num_draws: Draws that were made, a scalar.
        vocab_size: Rows there are.

    Returns:
        The shape of `rows`, float32.
    """
    k = rows.double()
    probability = torch.log((k + 2) / (k + 1)) / torch.log(torch.tensor(vocab_size + 1.0).double())
    return torch.log(-torch.expm1(num_draws * torch.log1p(-probability))).float()


def sampled_softmax_losses(
    hidden: Tensor,
    targets: Tensor,
    softmax: nn.Linear,
    num_negatives: int,
    generator: torch.Generator,
) -> Tensor:
    """Estimate `-log p(target)` from the target and negatives that all words share.

    As tf.nn.sampled_softmax_loss: the log of each row's expected count is subtracted from its
    logit, and a negative that is a word's own target does not count for it. The gradient is that
    of an unbiased estimate of the partition sum; the loss itself is lower than the full one.

    Args:
        hidden: Outputs of the top layer, shape `(words, projection_size)`.
        targets: Rows of the vocabulary, shape `(words,)`.
        softmax: Weight `(vocab_size, projection_size)` and bias.
        num_negatives: Rows to draw.
        generator: Source of chance, on the CPU.

    Returns:
        Losses in nats, shape `(words,)`.
    """
    vocab_size = softmax.out_features
    negatives, num_draws = draw_log_uniform(num_negatives, vocab_size, generator)
    negatives, num_draws = negatives.to(targets.device), num_draws.to(targets.device)
    rows = torch.cat([targets, negatives])
    correction = log_expected_count(rows, num_draws, vocab_size)
    weight = F.embedding(rows, softmax.weight)  # one gather: one dense gradient
    bias = softmax.bias[rows] - correction
    true_weight, negative_weight = weight.split([len(targets), num_negatives])
    true_bias, negative_bias = bias.split([len(targets), num_negatives])
    true_logits = torch.linalg.vecdot(hidden, true_weight.to(hidden.dtype)) + true_bias
    negative_logits = F.linear(hidden, negative_weight.to(hidden.dtype)) + negative_bias
    is_hit = targets[:, None] == negatives
    negative_logits = negative_logits.masked_fill(is_hit, torch.finfo(torch.float32).min)
    logits = torch.cat([true_logits[:, None], negative_logits], dim=1)
    return F.cross_entropy(logits.float(), torch.zeros_like(targets), reduction="none")

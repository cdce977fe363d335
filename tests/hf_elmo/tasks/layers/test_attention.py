"""Attentions against sums written out with einsum and loops."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from hf_elmo.tasks.layers.attention import (
    BidirectionalAttention,
    SelfAttention,
    TrilinearSimilarity,
    masked_softmax,
)

WIDTH = 3


def make_text(lengths: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """Vectors of words, noise at the padding, and the mask."""
    tokens = max(lengths) + 1
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(lengths), tokens, WIDTH, dtype=torch.float64, generator=generator)
    return x, torch.arange(tokens) < torch.tensor(lengths)[:, None]


def randomize(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module.double()


def compare_slowly(similarity: TrilinearSimilarity, x: Tensor, y: Tensor) -> Tensor:
    products = torch.einsum("d,rd,cd->rc", similarity.product, x, y)
    rows = torch.einsum("d,rd->r", similarity.row, x)
    return products + rows[:, None] + torch.einsum("d,cd->c", similarity.column, y)


def test_trilinear_similarity_is_its_formula() -> None:
    (x, _), (y, _) = make_text([4, 2], 0), make_text([3, 1], 1)
    similarity = randomize(TrilinearSimilarity(WIDTH))
    assert_close(similarity(x, y)[1], compare_slowly(similarity, x[1], y[1]))


def test_trilinear_similarity_starts_as_xavier_over_all_three() -> None:
    similarity = TrilinearSimilarity(1000)
    weights = torch.cat([similarity.row, similarity.column, similarity.product])
    expected = nn.init.xavier_uniform_(torch.empty(1, 3000)).std()
    assert_close(weights.std(), expected, rtol=0.05, atol=0.0)


def test_a_softmax_over_nothing_is_zero_and_so_is_its_gradient() -> None:
    scores = torch.randn(2, 3, requires_grad=True)
    shares = masked_softmax(scores, torch.tensor([[True, False, True], [False] * 3]))
    shares.square().sum().backward()
    assert_close(shares[0, [0, 2]], scores[0, [0, 2]].softmax(0))
    assert shares[1].tolist() == [0.0] * 3
    assert scores.grad is not None
    assert scores.grad[1].tolist() == [0.0] * 3


def test_bidirectional_attention_is_its_formula() -> None:
    (x, x_mask), (y, y_mask) = make_text([4, 2], 0), make_text([1, 3], 1)
    attention = randomize(BidirectionalAttention(WIDTH))
    got = attention(x, y, x_mask, y_mask)
    for row, (length, other) in enumerate([(4, 1), (2, 3)]):
        p, q = x[row, :length], y[row, :other]
        scores = compare_slowly(attention.similarity, p, q)
        a = torch.einsum("rc,cd->rd", scores.exp() / scores.exp().sum(1, keepdim=True), q)
        largest = scores.max(dim=1).values.exp()
        c = torch.einsum("r,rd->d", largest / largest.sum(), p)
        assert_close(got[row, :length], torch.cat([p, a, p * a, p * c], dim=1))


def test_self_attention_is_its_formula() -> None:
    x, mask = make_text([4, 1, 2], 0)
    attention = randomize(SelfAttention(WIDTH))
    got = attention(x, mask)
    for row, length in enumerate([4, 1, 2]):
        words = x[row, :length]
        weights = compare_slowly(attention.similarity, words, words).exp()
        for i in range(length):
            others = [j for j in range(length) if j != i]
            total = attention.nothing.exp() + sum(weights[i, j] for j in others)
            a = sum((weights[i, j] / total * words[j] for j in others), torch.zeros(WIDTH))
            assert_close(got[row, i], torch.cat([a, words[i], a * words[i]]))


def test_the_score_of_nothing_starts_at_minus_one() -> None:
    assert SelfAttention(WIDTH).nothing.tolist() == [-1.0]


def apply_bidirectional(module: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    return module(x, x.flip(0), mask, mask.flip(0)) * mask[..., None]


def apply_self(module: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    return module(x, mask) * mask[..., None]


CASES = [(BidirectionalAttention, apply_bidirectional), (SelfAttention, apply_self)]


@pytest.mark.parametrize(("kind", "apply"), CASES)
def test_gradients_are_right(kind: type[nn.Module], apply: Callable[..., Tensor]) -> None:
    x, mask = make_text([3, 1], 0)
    module = randomize(kind(WIDTH))
    names = [name for name, _ in module.named_parameters()]

    def compute(x: Tensor, *weights: Tensor) -> Tensor:
        parameters = dict(zip(names, weights, strict=True))

        def call(*inputs: Tensor) -> Tensor:
            return torch.func.functional_call(module, parameters, inputs)

        return apply(call, x, mask)

    weights = [weight.detach().requires_grad_() for weight in module.parameters()]
    assert torch.autograd.gradcheck(compute, (x.requires_grad_(), *weights))


@pytest.mark.parametrize(("kind", "apply"), CASES)
def test_padding_changes_nothing(kind: type[nn.Module], apply: Callable[..., Tensor]) -> None:
    x, mask = make_text([3, 2], 0)
    module = randomize(kind(WIDTH))
    wide = torch.cat([x, 9 + torch.randn(2, 3, WIDTH).double()], dim=1)
    wide_mask = torch.cat([mask, torch.zeros(2, 3, dtype=torch.bool)], dim=1)
    assert_close(apply(module, wide, wide_mask)[:, :4], apply(module, x, mask))

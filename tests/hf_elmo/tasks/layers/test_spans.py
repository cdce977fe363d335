"""Spans against loops over all of them."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from hf_elmo.tasks.coref import prune_spans
from hf_elmo.tasks.layers.spans import SpanEncoder, list_spans
from hf_elmo.tasks.squad import find_best_spans

TOKENS, MAX_WIDTH = 6, 3
SENTENCES = torch.tensor([0, 0, 0, 0, 1, 1])


def make_document() -> tuple[SpanEncoder, Tensor, Tensor]:
    torch.manual_seed(0)
    encoder = SpanEncoder(4, 3, MAX_WIDTH, 2).double()
    context = torch.randn(TOKENS, 4, dtype=torch.float64)
    return encoder, context, torch.randn(TOKENS, 3, dtype=torch.float64)


def test_spans_are_those_inside_a_sentence() -> None:
    got = torch.stack(list_spans(SENTENCES, MAX_WIDTH), dim=1).tolist()
    expected = [
        [start, end]
        for start, end in itertools.product(range(TOKENS), repeat=2)
        if 0 <= end - start < MAX_WIDTH and (end < 4 or start >= 4)
    ]
    assert got == expected


def test_a_document_without_words_has_no_spans() -> None:
    assert list_spans(torch.empty(0, dtype=torch.long), 3)[0].shape == (0,)


def test_a_span_is_its_bounds_its_attended_words_and_its_width() -> None:
    encoder, context, words = make_document()
    starts, ends = list_spans(SENTENCES, MAX_WIDTH)
    got = encoder(context, words, starts, ends)
    assert got.shape[1] == encoder.output_size
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        inside = slice(start, end + 1)
        scores = (context[inside] @ encoder.head.weight[0] + encoder.head.bias).exp()
        head = (scores / scores.sum()) @ words[inside]
        width = encoder.widths.weight[end - start]
        assert_close(got[row], torch.cat([context[start], context[end], head, width]))


def test_the_projection_of_all_spans_is_that_of_each() -> None:
    encoder, context, words = make_document()
    linear = nn.Linear(encoder.output_size, 5).double()
    starts, ends = list_spans(SENTENCES, MAX_WIDTH)
    got = encoder.project_all(context, words, linear)[starts, ends - starts]
    assert_close(got, linear(encoder(context, words, starts, ends)))


def test_a_document_of_fewer_words_than_a_span_is_projected() -> None:
    encoder, context, words = make_document()
    linear = nn.Linear(encoder.output_size, 5).double()
    got = encoder.project_all(context[:1], words[:1], linear)
    first = torch.tensor([0])
    assert_close(got[:, 0], linear(encoder(context[:1], words[:1], first, first)))


@pytest.mark.parametrize("is_projected", [False, True])
def test_gradients_are_right(is_projected: bool) -> None:
    encoder, context, words = make_document()
    linear = nn.Linear(encoder.output_size, 5).double()
    starts, ends = list_spans(SENTENCES, MAX_WIDTH)
    names, weights = zip(*encoder.named_parameters(), strict=True)

    class Call(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, context: Tensor, words: Tensor) -> Tensor:
            if is_projected:
                return self.encoder.project_all(context, words, linear)[starts, ends - starts]
            return self.encoder(context, words, starts, ends)

    def compute(context: Tensor, words: Tensor, *weights: Tensor) -> Tensor:
        parameters = {f"encoder.{n}": w for n, w in zip(names, weights, strict=True)}
        return torch.func.functional_call(Call(), parameters, (context, words))

    inputs = [weight.detach().requires_grad_() for weight in weights]
    assert torch.autograd.gradcheck(
        compute, (context.requires_grad_(), words.requires_grad_(), *inputs)
    )


def crosses(a: tuple[int, int], b: tuple[int, int]) -> bool:
    (first, last), (other_first, other_last) = sorted([a, b])
    return first < other_first <= last < other_last


@pytest.mark.parametrize("seed", range(20))
def test_the_best_spans_that_do_not_cross_are_kept(seed: int) -> None:
    torch.manual_seed(seed)
    starts, ends = list_spans(torch.zeros(9), 4)
    scores = torch.randn(len(starts))
    kept: list[tuple[int, int]] = []
    for row in scores.argsort(descending=True).tolist():
        span = (int(starts[row]), int(ends[row]))
        if len(kept) < 7 and not any(crosses(span, other) for other in kept):
            kept.append(span)
    rows = prune_spans(starts, ends, scores, 7)
    assert list(zip(starts[rows].tolist(), ends[rows].tolist(), strict=True)) == sorted(kept)


@pytest.mark.parametrize("seed", range(5))
def test_the_best_span_is_the_best_of_all(seed: int) -> None:
    torch.manual_seed(seed)
    starts, ends = torch.randn(2, 2, 7)
    lengths = [5, 7]
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    first, last = find_best_spans(starts, ends, mask, 3)
    for row, length in enumerate(lengths):
        spans = [(i, j) for i in range(length) for j in range(i, min(i + 3, length))]
        best = max(spans, key=lambda span: starts[row, span[0]] + ends[row, span[1]])
        assert (int(first[row]), int(last[row])) == best

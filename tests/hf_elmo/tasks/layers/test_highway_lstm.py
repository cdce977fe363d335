"""Highway LSTMs against a loop over time, written from the equations."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from hf_elmo.tasks.layers.highway_lstm import AlternatingHighwayLstm, HighwayLstm

LENGTHS = [3, 5, 0, 1]


def make_layer(is_reversed: bool = False, dropout: float = 0.0) -> HighwayLstm:
    torch.manual_seed(0)
    layer = HighwayLstm(4, 3, dropout=dropout, is_reversed=is_reversed).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def make_text(tokens: int = 5) -> tuple[Tensor, Tensor]:
    x = torch.randn(4, tokens, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(tokens) < torch.tensor(LENGTHS)[:, None]


def run_slowly(layer: HighwayLstm, words: Tensor) -> Tensor:
    """One sentence, gate by gate."""
    w_i, w_f, w_o, w_r, w_g, w_k = layer.input_linear.weight.split(3)
    u_i, u_f, u_o, u_r, u_g = layer.state_linear.weight.split(3)
    a_i, a_f, a_o, a_r, a_g, a_k = layer.input_linear.bias.split(3)
    b_i, b_f, b_o, b_r, b_g = layer.state_linear.bias.split(3)
    h = c = torch.zeros(3, dtype=torch.float64)
    outputs = [h] * len(words)
    steps = range(len(words))
    for t in reversed(steps) if layer.is_reversed else steps:
        x = words[t]
        i = torch.sigmoid(w_i @ x + a_i + u_i @ h + b_i)
        f = torch.sigmoid(w_f @ x + a_f + u_f @ h + b_f)
        o = torch.sigmoid(w_o @ x + a_o + u_o @ h + b_o)
        r = torch.sigmoid(w_r @ x + a_r + u_r @ h + b_r)
        c = i * torch.tanh(w_g @ x + a_g + u_g @ h + b_g) + f * c
        h = r * (o * torch.tanh(c)) + (1 - r) * (w_k @ x + a_k)
        outputs[t] = h
    return torch.stack(outputs)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_layer_is_its_equations(is_reversed: bool) -> None:
    layer, (x, mask) = make_layer(is_reversed), make_text()
    got = layer(x, mask)
    assert not got[~mask].any()
    for row, length in enumerate(LENGTHS):
        if length:
            assert_close(got[row, :length], run_slowly(layer, x[row, :length]))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_gradients_are_right(is_reversed: bool) -> None:
    layer, (x, mask) = make_layer(is_reversed), make_text()
    names, weights = zip(*layer.named_parameters(), strict=True)

    def compute(x: Tensor, *weights: Tensor) -> Tensor:
        parameters = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(layer, parameters, (x, mask))

    inputs = [weight.detach().requires_grad_() for weight in weights]
    assert torch.autograd.gradcheck(compute, (x.requires_grad_(), *inputs))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_padding_changes_nothing(is_reversed: bool) -> None:
    layer, (x, mask) = make_layer(is_reversed), make_text()
    wide, wide_mask = make_text(8)
    wide[:, :5] = x
    assert_close(layer(wide, wide_mask)[:, :5], layer(x, mask))


def test_the_recurrent_mask_is_one_a_sentence_and_spares_the_output() -> None:
    layer, (x, mask) = make_layer(dropout=0.5), make_text()
    torch.manual_seed(3)
    dropped = torch.nn.functional.dropout(torch.ones(4, 3, dtype=torch.float64), 0.5)[1]
    torch.manual_seed(3)
    got = layer(x, mask)[1]
    plain = make_layer()
    with torch.no_grad():  # dropping numbers of h is dropping columns of its matrix
        plain.state_linear.weight.mul_(dropped)
    assert 0 < dropped.count_nonzero() < 3
    assert_close(got, plain(x, mask)[1])


def test_each_gate_starts_orthonormal_and_the_forget_gate_open() -> None:
    layer = HighwayLstm(4, 3)
    for block in [*layer.input_linear.weight.split(3), *layer.state_linear.weight.split(3)]:
        assert_close(block @ block.T, torch.eye(3))
    assert layer.state_linear.bias.tolist() == [0.0] * 3 + [1.0] * 3 + [0.0] * 9
    assert not layer.input_linear.bias.any()


def test_every_second_layer_runs_from_the_end() -> None:
    torch.manual_seed(0)
    stack = AlternatingHighwayLstm(4, 3, 3).double()
    x, mask = make_text()
    assert [layer.is_reversed for layer in stack.layers] == [False, True, False]
    first, second, third = stack.layers
    assert_close(stack(x, mask), third(second(first(x, mask), mask), mask))


def test_a_batch_without_tokens_has_none() -> None:
    layer = HighwayLstm(4, 3, is_reversed=True)
    assert layer(torch.zeros(2, 0, 4), torch.zeros(2, 0).bool()).shape == (2, 0, 3)


def test_a_layer_runs_under_autocast() -> None:
    layer, (x, mask) = make_layer(), make_text()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer.float()(x.float(), mask)
    assert_close(y.double(), layer.double()(x, mask), rtol=0.05, atol=0.05)

"""LSTMs and GRUs of torch over sentences of different lengths, and their dropout."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .gru import run_gru

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
# On a CPU, if more than this share of a batch is words, it is faster to run over the padding too,
# because packed batches have no fused LSTM.
FULL = 0.6


class VariationalDropout(nn.Dropout):
    """Drop the same features in all words of a sentence (Gal & Ghahramani 2016)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's own name)
        """Apply a mask of shape `(batch, 1, width)` to `(batch, tokens, width)`."""
        return F.dropout1d(input.transpose(1, 2), self.p, self.training).transpose(1, 2)


def run_sentences(layers: nn.LSTM | nn.GRU, x: Tensor, mask: Tensor) -> Tensor:
    """Run an LSTM or a GRU over each sentence, independently of the other sentences.

    Args:
        layers: LSTM or GRU with `batch_first=True`.
        x: Shape `(batch, tokens, input_size)`.
        mask: True at words, padding on the right, shape `(batch, tokens)`.

    Returns:
        Shape `(batch, tokens, width)`, zeros at padding.
    """
    batch, tokens, _ = x.shape
    width = layers.hidden_size * (2 if layers.bidirectional else 1)
    if not batch or not tokens:
        return x.new_zeros(batch, tokens, width)
    lengths = mask.sum(dim=1)
    if x.device.type == "cpu":
        is_padded = bool(lengths.sum() > FULL * mask.numel())
    else:  # a resumed run could not continue cuDNN's own dropout between layers
        is_padded = layers.training and layers.dropout > 0
    if is_padded:
        outputs = _run_padded(layers, x, mask)
    else:
        lengths = lengths.clamp(min=1).cpu()  # torch cannot pack empty sentences
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(layers(packed)[0], batch_first=True, total_length=tokens)
    return outputs.masked_fill(~mask[..., None], 0.0)


def _run_padded(layers: nn.LSTM | nn.GRU, x: Tensor, mask: Tensor) -> Tensor:
    """Run over all positions; the backward direction reads the sentences reversed."""
    order = reverse_order(mask)[..., None]
    ends = ("", "_reverse") if layers.bidirectional else ("",)
    for layer in range(layers.num_layers):
        if layer:
            x = F.dropout(x, layers.dropout, layers.training)
        weights = [[getattr(layers, f"{name}_l{layer}{end}") for name in WEIGHTS] for end in ends]
        inputs = [x.gather(1, order.expand_as(x)) if end else x for end in ends]
        outputs = _run_layer(layers, inputs, weights)
        if layers.bidirectional:
            outputs[1] = outputs[1].gather(1, order.expand_as(outputs[1]))
        x = torch.cat(outputs, dim=2)
    return x


def _run_layer(
    layers: nn.LSTM | nn.GRU, inputs: list[Tensor], weights: list[list[Tensor]]
) -> list[Tensor]:
    """Run each direction of one layer."""
    if isinstance(layers, nn.GRU) and torch.is_grad_enabled() and inputs[0].device.type == "cpu":
        parts = map(torch.stack, zip(*weights, strict=True))
        return list(run_gru(torch.stack(inputs), *parts))
    state = inputs[0].new_zeros(1, len(inputs[0]), layers.hidden_size)
    options = (True, 1, 0.0, layers.training, False, True)
    return [
        torch.lstm(x, (state, state), own, *options)[0]
        if isinstance(layers, nn.LSTM)
        else torch.gru(x, state, own, *options)[0]
        for x, own in zip(inputs, weights, strict=True)
    ]


def reverse_order(mask: Tensor) -> Tensor:
    """Return positions that reverse the words of each sentence and leave padding in place.

    Args:
        mask: True at words, padding on the right, shape `(batch, tokens)`.

    Returns:
        Positions, shape `(batch, tokens)`.
    """
    places = torch.arange(mask.shape[1], device=mask.device)
    return (mask.sum(dim=1, keepdim=True) - 1 - places).where(mask, places)

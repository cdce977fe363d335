"""torch's LSTMs and GRUs over sentences of several lengths."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
# With more words than this share of a batch, it is faster to run over the padding too: packed
# batches have no fused LSTM.
FULL = 0.6


def run_sentences(layers: nn.LSTM | nn.GRU, x: Tensor, mask: Tensor) -> Tensor:
    """Run over the words of each sentence, as if it stood alone.

    Args:
        layers: With `batch_first=True`.
        x: Shape `(batch, tokens, input_size)`.
        mask: True at words, which stand first, shape `(batch, tokens)`.

    Returns:
        Shape `(batch, tokens, width)`, zeros at padding.
    """
    batch, tokens, _ = x.shape
    width = layers.hidden_size * (2 if layers.bidirectional else 1)
    if not batch or not tokens:
        return x.new_zeros(batch, tokens, width)
    lengths = mask.sum(dim=1)
    if lengths.sum() > FULL * mask.numel():
        outputs = _run_padded(layers, x, mask)
    else:
        lengths = lengths.clamp(min=1).cpu()  # torch packs no empty sentence
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(layers(packed)[0], batch_first=True, total_length=tokens)
    return outputs.masked_fill(~mask[..., None], 0.0)


def _run_padded(layers: nn.LSTM | nn.GRU, x: Tensor, mask: Tensor) -> Tensor:
    """Run over all positions; the backward direction reads sentences turned round."""
    order = reverse_order(mask)[..., None]
    state = x.new_zeros(1, len(x), layers.hidden_size)
    for layer in range(layers.num_layers):
        if layer:
            x = F.dropout(x, layers.dropout, layers.training)
        outputs = []
        for end in ("", "_reverse") if layers.bidirectional else ("",):
            weights = [getattr(layers, f"{name}_l{layer}{end}") for name in WEIGHTS]
            y = x.gather(1, order.expand_as(x)) if end else x
            options = (True, 1, 0.0, layers.training, False, True)
            if isinstance(layers, nn.LSTM):
                y = torch.lstm(y, (state, state), weights, *options)[0]
            else:
                y = torch.gru(y, state, weights, *options)[0]
            outputs.append(y.gather(1, order.expand_as(y)) if end else y)
        x = torch.cat(outputs, dim=2)
    return x


def reverse_order(mask: Tensor) -> Tensor:
    """Return where each word stands when every sentence is turned round, padding left in place.

    Args:
        mask: True at words, which stand first, shape `(batch, tokens)`.

    Returns:
        Positions, shape `(batch, tokens)`.
    """
    places = torch.arange(mask.shape[1], device=mask.device)
    return (mask.sum(dim=1, keepdim=True) - 1 - places).where(mask, places)

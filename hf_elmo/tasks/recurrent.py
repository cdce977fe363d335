"""torch's LSTMs and GRUs over sentences of several lengths."""

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def run_packed(layers: nn.LSTM | nn.GRU, x: Tensor, mask: Tensor) -> Tensor:
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
    lengths = mask.sum(dim=1).clamp(min=1).cpu()  # torch packs no empty sentence
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    outputs, _ = pad_packed_sequence(layers(packed)[0], batch_first=True, total_length=tokens)
    return outputs.masked_fill(~mask[..., None], 0.0)

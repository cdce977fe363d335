"""LSTM layers with highways in alternating directions (He et al. 2017)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

from .recurrent import reverse_order


class HighwayLstm(nn.Module):
    """One direction of an LSTM with a highway gate (Zhang et al. 2016; He et al. 2017).

    With `[i f o r g] = W x_t + U h_t-1 + b` and `k = V x_t + d`:
    `c_t = sigmoid(i) * tanh(g) + sigmoid(f) * c_t-1`,
    `h_t = sigmoid(r) * (sigmoid(o) * tanh(c_t)) + (1 - sigmoid(r)) * k`.

    In training, the recurrent state (`h_t-1`) is multiplied by one dropout mask per sentence; the
    output is not (allennlp/modules/augmented_lstm.py).

    Args:
        input_size: Width of the input.
        hidden_size: Width of the output.
        dropout: Dropout probability for the recurrent state, in training only.
        is_reversed: Whether the layer runs from each sentence's last word to its first.
    """

    def __init__(
        self, input_size: int, hidden_size: int, *, dropout: float = 0.0, is_reversed: bool = False
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.dropout = dropout
        self.is_reversed = is_reversed
        self.input_linear = nn.Linear(input_size, 6 * hidden_size)
        self.state_linear = nn.Linear(hidden_size, 5 * hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw an orthonormal matrix for each gate; set the forget bias to 1, the others to 0."""
        size = self.hidden_size
        for linear in (self.input_linear, self.state_linear):
            blocks = [nn.init.orthogonal_(torch.empty_like(x)) for x in linear.weight.split(size)]
            initialization.copy_(linear.weight, torch.cat(blocks))
        initialization.zeros_(self.input_linear.bias)
        gates = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]).repeat_interleave(size)
        initialization.copy_(self.state_linear.bias, gates)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Run over each sentence's words.

        Args:
            x: Shape `(batch, tokens, input_size)`.
            mask: True at words, shape `(batch, tokens)`.

        Returns:
            Shape `(batch, tokens, hidden_size)`, zeros at padding.
        """
        batch, tokens, _ = x.shape
        size = self.hidden_size
        order = reverse_order(mask)[..., None] if self.is_reversed else None
        if order is not None:
            x = x.gather(1, order.expand_as(x))
        projected = self.input_linear(x).transpose(0, 1)  # (tokens, batch, 6 * hidden_size)
        inputs, highways = projected.split([5 * size, size], dim=2)
        recurrent_mask = F.dropout(x.new_ones(batch, size), self.dropout, self.training)
        h = c = x.new_zeros(batch, size)
        outputs = []
        for step, highway in zip(inputs.unbind(), highways.unbind(), strict=True):
            gates = step + self.state_linear(h * recurrent_mask)
            sigmoid_gates, g = gates.split([4 * size, size], dim=1)
            i, f, o, r = sigmoid_gates.sigmoid().chunk(4, dim=1)
            c = i * g.tanh() + f * c
            h = torch.lerp(highway, (o * c.tanh()).to(r.dtype), r)  # c is float32 under autocast
            outputs.append(h)
        if not tokens:
            return x.new_zeros(batch, 0, size)
        y = torch.stack(outputs, dim=1)
        if order is not None:
            y = y.gather(1, order.expand_as(y))
        return y.masked_fill(~mask[..., None], 0.0)


class AlternatingHighwayLstm(nn.Module):
    """Layers of `HighwayLstm`; each reads the previous layer's output in the other direction.

    Args:
        input_size: Width of the input.
        hidden_size: Width of each layer.
        num_layers: Number of layers; the first runs forward.
        dropout: As for `HighwayLstm`.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            HighwayLstm(
                hidden_size if number else input_size,
                hidden_size,
                dropout=dropout,
                is_reversed=number % 2 == 1,
            )
            for number in range(num_layers)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Run all layers; shapes as for `HighwayLstm`."""
        for layer in self.layers:
            x = layer(x, mask)
        return x

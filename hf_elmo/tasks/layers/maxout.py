"""Maxout layers."""

from torch import Tensor, nn


class Maxout(nn.Module):
    """The largest of several linear layers, number by number (Goodfellow et al. 2013).

    `y_k = max_j (W_kj x + b_kj)`.

    Args:
        in_features: Width of the input.
        out_features: Width of the output.
        num_pieces: Linear layers of which the maximum is taken.
    """

    def __init__(self, in_features: int, out_features: int, num_pieces: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features * num_pieces)
        self.num_pieces = num_pieces

    def forward(self, x: Tensor) -> Tensor:
        """Map the last axis from `in_features` to `out_features`."""
        return self.linear(x).unflatten(-1, (-1, self.num_pieces)).amax(dim=-1)

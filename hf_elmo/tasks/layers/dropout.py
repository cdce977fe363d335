"""Dropout that is the same at every word of a sentence."""

import torch.nn.functional as F
from torch import Tensor, nn


class VariationalDropout(nn.Dropout):
    """Drop the same numbers of all words of a sentence (Gal & Ghahramani 2016)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's own name)
        """Drop numbers of `(batch, tokens, width)`: those of a mask `(batch, 1, width)`."""
        return F.dropout1d(input.transpose(1, 2), self.p, self.training).transpose(1, 2)

"""Dropout that is the same at every word of a sentence."""

import torch.nn.functional as F
from torch import Tensor, nn


class VariationalDropout(nn.Dropout):
    """Drop the same features of all words of a sentence (Gal & Ghahramani 2016)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's own name)
        """Apply a mask of shape `(batch, 1, width)` to `(batch, tokens, width)`."""
        return F.dropout1d(input.transpose(1, 2), self.p, self.training).transpose(1, 2)

"""One vector of a sentence, out of those of its words."""

import torch
from torch import Tensor


def pool_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean over words.

    Args:
        x: Shape `(batch, tokens, width)`.
        mask: True at words, shape `(batch, tokens)`.

    Returns:
        Shape `(batch, width)`; zeros of a sentence without words.
    """
    return x.masked_fill(~mask[..., None], 0.0).sum(dim=1) / mask.sum(dim=1)[:, None].clamp(min=1)


def pool_max(x: Tensor, mask: Tensor) -> Tensor:
    """Compute the maximum over words; arguments and result as of `pool_mean`."""
    if not mask.shape[1]:
        return x.new_zeros(len(x), x.shape[2])
    largest = x.masked_fill(~mask[..., None], torch.finfo(x.dtype).min).amax(dim=1)
    return largest.masked_fill(~mask.any(dim=1)[:, None], 0.0)

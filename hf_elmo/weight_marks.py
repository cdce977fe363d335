"""Marks of weights, by which what was computed from them is known to be out of date."""

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

SAMPLE_SIZE = 64  # numbers of each weight, about; all numbers of a smaller weight


def mark_weights(weights: Iterable[Tensor]) -> Hashable:
    """Return a mark of weights, which differs from an earlier one if they have changed since.

    It holds the address of each weight, PyTorch's count of writes to it, and numbers spread over
    it. PyTorch does not count writes through `weight.data`, by which thinc's optimisers, averages
    of weights and merged adapters change a whole weight: the numbers show them. A write through
    `data` to a few numbers of a weight may go unseen.

    Args:
        weights: At least one, of any shapes and dtypes, on one device. Those without numbers that
            can be read (on the device "meta", or of a subclass of `Tensor`) count by address and
            writes alone.

    Returns:
        The mark, to be compared by `==`.
    """
    plain = [weight.detach() for weight in weights]
    writes = [(w.data_ptr(), 0 if w.is_inference() else w._version) for w in plain]
    samples = [
        w.reshape(-1)[:: w.numel() // SAMPLE_SIZE | 1]  # an odd step, so as to meet many columns
        for w in plain
        if type(w) is Tensor and not w.is_meta
    ]
    return (*writes, *(torch.cat(samples).tolist() if samples else ()))

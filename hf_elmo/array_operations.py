"""Make, select, join, stack and sum tensors, with NumPy if they are on a CPU.

After an operation on a large tensor, PyTorch's threads busy-wait for some milliseconds. This takes
processor time from ONNX Runtime's threads. NumPy uses one thread.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def _are_arrays(*tensors: Tensor) -> bool:
    """Return whether NumPy can compute with tensors: NumPy has no gradients and no bfloat16."""
    return all(
        x.device.type == "cpu" and x.dtype != torch.bfloat16 and not x.requires_grad
        for x in tensors
    )


def make_zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    """Make zeros in the dtype and on the device of another tensor."""
    if like.device.type == "cpu":
        return torch.from_numpy(np.zeros(shape, np.float32)).to(like.dtype)
    return like.new_zeros(shape)


def take(x: Tensor, rows: Tensor, dim: int = 0) -> Tensor:
    """Copy the entries `rows` of an axis, as `torch.index_select` does."""
    if _are_arrays(x):
        return torch.from_numpy(x.numpy().take(rows.numpy(), axis=dim))
    return x.index_select(dim, rows.to(x.device))


def join(tensors: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenate tensors along an axis; return a single tensor unchanged."""
    if len(tensors) == 1:
        return tensors[0]
    if _are_arrays(*tensors):
        return torch.from_numpy(np.concatenate([x.numpy() for x in tensors], axis=dim))
    return torch.cat(list(tensors), dim=dim)


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors along a new first axis."""
    if _are_arrays(*tensors):
        return torch.from_numpy(np.stack([x.numpy() for x in tensors]))
    return torch.stack(list(tensors))


def sum_weighted(weights: Tensor, x: Tensor) -> Tensor:
    """Sum a tensor over its first axis, with a weight for each entry of that axis."""
    if x.dtype == torch.float32 and _are_arrays(weights, x):
        # Not `tensordot`, because it calls BLAS, whose own threads busy-wait too.
        return torch.from_numpy(np.einsum("l,l...->...", weights.numpy(), x.numpy()))
    return torch.tensordot(weights, x, dims=1)


def are_finite(x: Tensor) -> bool:
    """Return whether all values are finite."""
    return bool(np.isfinite(x.numpy()).all() if _are_arrays(x) else x.isfinite().all())

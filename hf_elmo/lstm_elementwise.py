"""Elementwise work of an LSTM's time step in PyTorch."""

import torch
from torch import Tensor

from .lstm_products import can_pack

FEW_NUMBERS = 2**13  # up to this number, oneDNN's tanh is slower than the formula


def tanh(x: Tensor) -> Tensor:
    """Compute `tanh(x)`, by oneDNN if `x` is large, else as `-m / (m + 2)`, `m = expm1(-2 * x)`.

    oneDNN's relative error is 1e-7, the formula's is 2e-7. Each takes at most half of the time of
    PyTorch's tanh.
    """
    if x.numel() > FEW_NUMBERS and x.dtype == torch.float32 and can_pack(x.dtype, x.device.type):
        return x.to_mkldnn().tanh_().to_dense()
    x = x.clamp(min=-40).mul_(-2).expm1_()  # below -44, the exponential would overflow
    return x.div_(-2 - x)


def activate(gates: Tensor, cell: Tensor, cell_clip: float | None) -> tuple[Tensor, Tensor]:
    """Activate the gates and advance the cell, both in place.

    Args:
        gates: The gates before activation, shape `(alive, 4 * cell_size)`; `alive` is the number
            of sentences that have not ended.
        cell: Cell of the previous step, shape `(alive, cell_size)`.
        cell_clip: Bound of the cell's absolute values; None = no bound.

    Returns:
        The output before its projection and the tanh of the cell, shapes `(alive, cell_size)`.
    """
    i, f, o, j = gates.chunk(4, dim=1)
    gates[:, : 3 * cell.shape[1]].sigmoid_()
    j.copy_(tanh(j))
    cell.mul_(f).addcmul_(i, j)
    if cell_clip is not None:
        cell.clamp_(-cell_clip, cell_clip)
    cell_tanh = tanh(cell)
    return o * cell_tanh, cell_tanh


def activate_fast(gates: Tensor, cell: Tensor, cell_clip: float | None) -> tuple[Tensor, Tensor]:
    """Do the same as `activate`, with tanh as `2 * sigmoid(2 * x) - 1`, the fastest on a CPU.

    The subtraction adds an error of 1e-7, which would double the error of float32 states. Training
    tolerates this error. Matrix products in reduced precision have a much larger error.
    """
    i, f, o, j = gates.chunk(4, dim=1)
    j.mul_(2)
    gates.sigmoid_()
    j.mul_(2).sub_(1)
    cell.mul_(f).addcmul_(i, j)
    if cell_clip is not None:
        cell.clamp_(-cell_clip, cell_clip)
    cell_tanh = torch.mul(cell, 2).sigmoid_().mul_(2).sub_(1)
    return o * cell_tanh, cell_tanh

"""Elementwise work of an LSTM's time step in PyTorch."""

import torch
from torch import Tensor

from .lstm_products import can_pack

FEW_NUMBERS = 2**13  # below, oneDNN's tanh costs more than it saves


def tanh(x: Tensor) -> Tensor:
    """Compute `tanh(x)`: of many numbers by oneDNN, of few as `-m / (m + 2)`, `m = expm1(-2 * x)`.

    The relative error is 1e-7 by oneDNN and 2e-7 by the formula. They take a third or half of the
    time of PyTorch's tanh.
    """
    if x.numel() > FEW_NUMBERS and x.dtype == torch.float32 and can_pack(x.dtype, x.device.type):
        return x.to_mkldnn().tanh_().to_dense()
    x = x.clamp(min=-40).mul_(-2).expm1_()  # below, the exponential would overflow
    return x.div_(-2 - x)


def activate(gates: Tensor, cell: Tensor, cell_clip: float | None) -> tuple[Tensor, Tensor]:
    """Activate the gates and advance the cell, both in place.

    Args:
        gates: The gates before activation, shape `(alive, 4 * cell_size)`; "alive" are the
            sentences that have not ended.
        cell: Cell of the step before, shape `(alive, cell_size)`.
        cell_clip: Bound of the cell, or None.

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

    The subtraction errs by 1e-7, which would double the error of states in float32. That is small
    compared with the errors of products in reduced precision, and with those of training.
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

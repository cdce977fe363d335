"""The elementwise work of a time step on a GPU, as one Triton kernel.

Without it, a step needs about fifteen kernels, and each takes longer to launch than to run. With
it, a step is this kernel, two products, two copies and a clip.
"""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError as error:  # with `try`, transformers does not require Triton for remote code
    raise ImportError("Expected Triton, which comes with PyTorch for CUDA.") from error

BLOCK_SIZE = 1024


@triton.jit
def activate_kernel(
    gates: tl.tensor,
    cell: tl.tensor,
    hidden: tl.tensor,
    cell_tanh: tl.tensor,
    numel: tl.tensor,
    cell_size: tl.tensor,
    cell_clip: tl.tensor,
    is_clipped: tl.constexpr,
    block_size: tl.constexpr,
) -> None:
    """Activate the gates and advance the cell in place, for one block of the cell's values."""
    place = tl.program_id(0) * block_size + tl.arange(0, block_size)
    within = place < numel
    gate = gates + place // cell_size * 4 * cell_size + place % cell_size
    i = tl.sigmoid(tl.load(gate, within))
    f = tl.sigmoid(tl.load(gate + cell_size, within))
    o = tl.sigmoid(tl.load(gate + 2 * cell_size, within))
    j = 2 * tl.sigmoid(2 * tl.load(gate + 3 * cell_size, within)) - 1
    c = f * tl.load(cell + place, within) + i * j
    if is_clipped:
        # Not minimum and maximum, which would replace NaN by a bound.
        c = tl.where(c < -cell_clip, -cell_clip, tl.where(c > cell_clip, cell_clip, c))
    c_tanh = 2 * tl.sigmoid(2 * c) - 1
    tl.store(gate, i, within)
    tl.store(gate + cell_size, f, within)
    tl.store(gate + 2 * cell_size, o, within)
    tl.store(gate + 3 * cell_size, j, within)
    tl.store(cell + place, c, within)
    tl.store(cell_tanh + place, c_tanh, within)
    tl.store(hidden + place, o * c_tanh, within)


def try_once() -> None:
    """Run the kernel once, because Triton compiles at the first run, and needs a C compiler."""
    if not torch.compiler.is_compiling():
        gates, cell = (torch.zeros(1, n, dtype=torch.float32, device="cuda") for n in (4, 1))
        activate(gates, cell, None)


def activate(gates: Tensor, cell: Tensor, cell_clip: float | None) -> tuple[Tensor, Tensor]:
    """Activate the gates and advance the cell in one kernel, as `lstm_elementwise.activate` does.

    Args:
        gates: The gates before activation, contiguous, in float32, shape `(alive, 4 * cell_size)`;
            activated in place.
        cell: Contiguous, in float32, shape `(alive, cell_size)`; advanced in place.
        cell_clip: Bound of the cell's absolute values; None = no bound.

    Returns:
        The output before its projection and the tanh of the cell, shapes `(alive, cell_size)`.
    """
    hidden, cell_tanh = torch.empty_like(cell), torch.empty_like(cell)
    with torch.cuda.device_of(cell):  # Triton launches on the current device
        activate_kernel[(triton.cdiv(cell.numel(), BLOCK_SIZE),)](
            gates,
            cell,
            hidden,
            cell_tanh,
            cell.numel(),
            cell.shape[1],
            cell_clip or 0.0,
            is_clipped=cell_clip is not None,
            block_size=BLOCK_SIZE,
        )
    return hidden, cell_tanh

"""The choice of what computes the elementwise work of a time step: PyTorch or the Triton kernel."""

import functools
from collections.abc import Callable

from torch import Tensor

from .lstm_elementwise import activate, activate_fast


@functools.cache
def choose_activation(device: str, is_fast: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """Choose `activate`, or the kernel that does the same on a GPU where Triton is there."""
    if device != "cuda":
        return activate_fast if is_fast else activate
    try:
        from .lstm_triton_kernel import activate as activate_on_gpu
    except ImportError:
        return activate
    return activate_on_gpu

"""Choice between PyTorch and the Triton kernel for the elementwise work of a time step."""

import functools
from collections.abc import Callable

from torch import Tensor

from .lstm_elementwise import activate, activate_fast


@functools.cache
def choose_activation(device: str, is_fast: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """Choose `activate` or `activate_fast`; on a GPU, the Triton kernel if Triton is installed."""
    if device != "cuda":
        return activate_fast if is_fast else activate
    try:
        from .lstm_triton_kernel import activate as activate_on_gpu
    except ImportError:
        return activate
    return activate_on_gpu

"""Choice between PyTorch and the Triton kernel for the elementwise work of a time step."""

import functools
import warnings
from collections.abc import Callable

from torch import Tensor

from .lstm_elementwise import activate, activate_fast


@functools.cache
def choose_activation(device: str, is_fast: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """Choose `activate` or `activate_fast`; on a GPU, the Triton kernel if it runs."""
    if device != "cuda":
        return activate_fast if is_fast else activate
    try:
        from .lstm_triton_kernel import activate as activate_on_gpu
        from .lstm_triton_kernel import try_once
    except ImportError:
        return activate
    try:
        try_once()
    except Exception as error:  # noqa: BLE001 (no C compiler, a GPU that Triton does not support)
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(
            "The Triton kernel does not run, so PyTorch computes the gates of the LSTMs, which "
            f"is slower. The reason: {type(error).__name__}: {reason}",
            stacklevel=2,
        )
        return activate
    return activate_on_gpu

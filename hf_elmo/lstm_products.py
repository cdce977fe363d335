"""Products `x @ weight^T` of an LSTM's steps, with weights that oneDNN packs once.

A packed weight serves any number of rows, in float32 or bfloat16. PyTorch's oneDNN operators are
private, and only this module uses them. If `can_pack` finds that they are missing or wrong,
PyTorch's public operators are used instead.
"""

import functools
import platform

import torch
from torch import Tensor
from torch.nn import functional as F

PACKING_ROWS = 64  # number of rows that oneDNN packs for; the layout serves any number


@functools.cache
def can_pack(dtype: torch.dtype, device: str) -> bool:
    """Return whether oneDNN's packed products are available and correct for a dtype and device."""
    if device != "cpu" or not torch.backends.mkldnn.enabled:
        return False
    try:
        weight = torch.ones(32, 16, dtype=dtype, device=device)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 2)
        product = torch.ops.mkldnn._linear_pointwise(weight[:2], packed, None, "none", [], "")
        total = torch.ops.mkldnn._linear_pointwise.binary(weight[:2], product, packed, None, "add")
    except (AttributeError, RuntimeError):
        return False
    return bool((total == 32).all())


@functools.cache
def choose_product_dtype(dtype: torch.dtype, device: str) -> torch.dtype:
    """Return the dtype for products: on a CPU, float32 replaces float16 and emulated bfloat16.

    Without instructions for bfloat16, a CPU emulates it, several times slower than float32. The
    environment variable `ONEDNN_MAX_CPU_ISA` can limit the instructions that oneDNN reports.
    """
    if device != "cpu" or dtype not in (torch.bfloat16, torch.float16):
        return dtype
    if dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        is_x86 = platform.machine().lower() in ("x86_64", "amd64")
        if not is_x86 or torch.cpu._is_avx512_bf16_supported():
            return dtype
    return torch.float32


def pack_weight(weight: Tensor) -> Tensor:
    """Pack a weight `(out, in)`; return it unchanged where oneDNN cannot pack it.

    With few rows, the packed product takes at most half the time of MKL's float32 product.
    """
    if can_pack(weight.dtype, weight.device.type):
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKING_ROWS)
        return packed
    return weight


def multiply(x: Tensor, weight: Tensor, addend: Tensor | None = None) -> Tensor:
    """Compute `x @ weight^T + addend`, without autograd.

    Args:
        x: Shape `(rows, in)`.
        weight: A weight `(out, in)`, packed or not.
        addend: Shape `(out,)` or `(rows, out)`; None = nothing.

    Returns:
        Shape `(rows, out)`.
    """
    product: Tensor
    if not weight.is_mkldnn:
        return F.linear(x, weight) if addend is None else torch.addmm(addend, x, weight.t())
    if addend is None or addend.dim() == 1:
        product = torch.ops.mkldnn._linear_pointwise(x, weight, addend, "none", [], "")
    else:
        product = torch.ops.mkldnn._linear_pointwise.binary(x, addend, weight, None, "add")
    return product

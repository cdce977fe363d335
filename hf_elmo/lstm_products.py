"""How the products of an LSTM's steps, `x @ weight^T`, are laid out.

Each weight is laid out once, for the number of rows of `x` and for the precision:

- any number of rows, float32 or bfloat16: packed by oneDNN (`pack_weight`),
- any number of rows, 8 bits: packed by oneDNN, too (`pack_int8_weight`),
- one row, float32 or bfloat16: columns in blocks, summed by embedding bags (`pack_for_row`),
- one row, 8 bits: packed by FBGEMM (`pack_for_row`).

oneDNN's and FBGEMM's operators are private to PyTorch, and this is the one module that uses them.
Each is run once before it is trusted. Where one is missing or wrong, the next plainer layout
serves, down to `F.linear`.
"""

import functools
import math
import threading
import warnings
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

PACKING_ROWS = 64  # what oneDNN lays weights out for; that layout serves any number of rows
INT8_ZERO_POINT = 128  # activations are unsigned in oneDNN's fast products
INT8_MAX = 127
BLOCK_SIZES = (256, 128, 64, 48, 32, 16)  # outputs in a block of a `RowWeight`, the fastest first
MIN_BLOCKS = 4  # of a `RowWeight`, so that several threads have one each
TINY = torch.finfo(torch.float32).tiny  # so that the scale of a row of zeros is not zero
PROBE_LOCK = threading.Lock()  # `warnings.catch_warnings` is not thread-safe

Quantization = Literal["int8"] | None


class Int8Weight(NamedTuple):
    """A weight `(out, in)` in 8 bits, each of its outputs with a scale of its own."""

    packed: Tensor  # mkldnn
    scales: Tensor  # (out,)
    zero_points: Tensor  # (out,), all 0


class RowWeight(NamedTuple):
    """A weight `(out, in)` laid out for one row, as embedding bags compute products.

    `x @ weight^T` is the sum of the weight's columns, each times a number of x. The outputs are cut
    into blocks. Of each block, a bag sums the columns; a column is a row of the table. So memory is
    read once and in order, which takes two thirds to three quarters of the time of oneDNN's
    product in float32, and less than that of the original size's in bfloat16.
    """

    table: Tensor  # (blocks * in, out / blocks)
    indices: Tensor  # int32, (blocks * in,): all rows of the table
    offsets: Tensor  # int32, (blocks,): where each bag begins


class Int8RowWeight(NamedTuple):
    """A weight `(out, in)` in 8 bits for one row, packed by FBGEMM in twice oneDNN's speed."""

    packed: Any


PackedWeight = Tensor | Int8Weight | RowWeight | Int8RowWeight


@functools.cache
def can_pack(dtype: torch.dtype, device: str) -> bool:
    """Return whether oneDNN's packed products are there, and right, for a dtype and device."""
    if device != "cpu":
        return False
    try:
        weight = torch.ones(32, 16, dtype=dtype, device=device)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 2)
        product = torch.ops.mkldnn._linear_pointwise(weight[:2], packed, None, "none", [], "")
        total = torch.ops.mkldnn._linear_pointwise.binary(weight[:2], product, packed, None, "add")
    except (AttributeError, RuntimeError):
        return False
    return bool((total == 32).all())


def pack_weight(weight: Tensor) -> Tensor:
    """Lay a weight `(out, in)` out for any number of rows; itself where nothing does so.

    With few rows, the packed product takes half the time of MKL's in float32, or less.
    """
    if can_pack(weight.dtype, weight.device.type):
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKING_ROWS)
        return packed
    return weight


@functools.cache
def can_multiply_int8(device: str) -> bool:
    """Return whether oneDNN's products in 8 bits are there, and right, on a device."""
    if device != "cpu":
        return False
    x = torch.ones(2, 64, dtype=torch.float32, device=device)
    try:
        product = multiply_int8(x, prepack_int8(x[:1].expand(32, 64)), None)
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(product, torch.full_like(product, 64))


def pack_int8_weight(weight: Tensor) -> Int8Weight:
    """Round a weight `(out, in)` to 8 bits and lay it out for any number of rows.

    Raises:
        ValueError: If this PyTorch, or this device, has no such products.
    """
    if not can_multiply_int8(weight.device.type):
        raise ValueError(
            f'Expected int8 products of oneDNN for quantization="int8" on {weight.device}, found '
            "none: they are there on processors, in PyTorch for x86 and Arm. Use the device cpu, "
            "or quantization=None."
        )
    return prepack_int8(weight)


def prepack_int8(weight: Tensor) -> Int8Weight:
    """Do what `pack_int8_weight` does, and trust that the operators are there."""
    rounded, scales = round_weight(weight)
    packed = torch.ops.onednn.qlinear_prepack(rounded, None)
    return Int8Weight(packed, scales, torch.zeros_like(scales, dtype=torch.int64))


def round_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a weight `(out, in)` to 8 bits; return it and the scales of its outputs `(out,)`."""
    scales = weight.abs().amax(1).float().add_(TINY).div_(INT8_MAX)
    return (weight / scales[:, None]).round_().to(torch.int8), scales


@functools.cache
def has_fbgemm() -> bool:
    """Return whether PyTorch has FBGEMM, without which embedding bags are slow."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def pack_for_row(weight: Tensor, packed: PackedWeight) -> PackedWeight:
    """Lay a weight `(out, in)` out for one row only.

    Args:
        weight: In the dtype of the products.
        packed: The same, laid out for any number of rows.

    Returns:
        The weight, laid out; or `packed`, where nothing better is there.
    """
    if not has_fbgemm():
        return packed
    if isinstance(packed, Int8Weight):
        engine = torch.backends.quantized.engine  # lays out; FBGEMM, unless somebody changed it
        return pack_int8_for_row(weight) if can_multiply_int8_row(engine) else packed
    outputs, inputs = weight.shape
    fitting = [size for size in BLOCK_SIZES if size * MIN_BLOCKS <= outputs and not outputs % size]
    if not fitting or not can_pack(weight.dtype, weight.device.type):
        return packed
    table = weight.unflatten(0, (-1, fitting[0])).transpose(1, 2).flatten(0, 1)
    indices = torch.arange(len(table), dtype=torch.int32, device=weight.device)
    return RowWeight(table, indices, indices[::inputs].contiguous())


def pack_int8_for_row(weight: Tensor) -> Int8RowWeight:
    """Round a weight `(out, in)` to the same 8 bits as `pack_int8_weight`, and lay it out."""
    rounded, scales = round_weight(weight)
    zero_points = torch.zeros_like(scales, dtype=torch.int64)
    quantized = torch._make_per_channel_quantized_tensor(rounded, scales, zero_points, 0)
    return Int8RowWeight(torch.ops.quantized.linear_prepack(quantized, None))


@functools.cache
def can_multiply_int8_row(engine: str) -> bool:
    """Return whether FBGEMM's products in 8 bits are there and do not overflow.

    Without VNNI, they may. They are part of PyTorch's older quantization, which will go one day;
    its warning of that is kept from the user.
    """
    x = torch.ones(1, 64, dtype=torch.float32, device="cpu")
    try:
        with PROBE_LOCK, warnings.catch_warnings(action="ignore"):
            weight = pack_int8_for_row(x.expand(32, 64))
        product = multiply_int8_row(x, weight, None)
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(product, torch.full_like(product, 64))


def multiply(x: Tensor, weight: PackedWeight, addend: Tensor | None = None) -> Tensor:
    """Compute `x @ weight^T + addend`, without autograd.

    Args:
        x: Shape `(rows, in)`; one row for a weight laid out for one.
        weight: A weight `(out, in)`, laid out.
        addend: Shape `(out,)` or `(rows, out)`; None = nothing.

    Returns:
        Shape `(rows, out)`.
    """
    product: Tensor
    if isinstance(weight, Int8Weight):
        return multiply_int8(x, weight, addend)
    if isinstance(weight, RowWeight):
        return multiply_row(x, weight, addend)
    if isinstance(weight, Int8RowWeight):
        return multiply_int8_row(x, weight, addend)
    if not weight.is_mkldnn:
        return F.linear(x, weight) if addend is None else torch.addmm(addend, x, weight.t())
    if addend is None or addend.dim() == 1:
        product = torch.ops.mkldnn._linear_pointwise(x, weight, addend, "none", [], "")
    else:
        product = torch.ops.mkldnn._linear_pointwise.binary(x, addend, weight, None, "add")
    return product


def multiply_row(x: Tensor, weight: RowWeight, addend: Tensor | None) -> Tensor:
    """Compute `x @ weight^T + addend` of one row."""
    factors = x.expand(len(weight.offsets), -1).reshape(-1)
    product, *_ = torch.embedding_bag(
        weight.table, weight.indices, weight.offsets, False, 0, False, factors
    )  # neither scaled by frequency, nor a mean, nor with sparse gradients
    product = product.view(1, -1)
    return product if addend is None else product + addend


def multiply_int8(x: Tensor, weight: Int8Weight, addend: Tensor | None) -> Tensor:
    """Compute `x @ weight^T + addend` with `x` rounded to 8 bits, each row with its own scale.

    With one scale for all of them, a row's result would depend on the other rows.
    """
    wide = x.float()
    scales = torch.linalg.vector_norm(wide, math.inf, 1, keepdim=True).clamp_(min=TINY)
    # The conversion cuts off what is behind the point: with the half, it rounds.
    zero = wide.new_tensor(INT8_ZERO_POINT + 0.5)
    rounded = torch.addcdiv(zero, wide, scales, value=INT8_MAX).to(torch.uint8)
    # scale and zero point of x; packed, scales and zero points of the weight; no bias; scale, zero
    # point and dtype of the product; no operation after it
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        rounded, 1 / INT8_MAX, INT8_ZERO_POINT, *weight, None, 1.0, 0, wide.dtype, "none", [], ""
    )
    product = product.mul_(scales) if addend is None else torch.addcmul(addend, product, scales)
    return product.to(x.dtype)


def multiply_int8_row(x: Tensor, weight: Int8RowWeight, addend: Tensor | None) -> Tensor:
    """Compute what `multiply_int8` does, of one row."""
    scale = torch.linalg.vector_norm(x, math.inf).item() / INT8_MAX
    scale = max(scale, TINY)  # in this order NaN stays NaN
    is_finite = math.isfinite(scale)
    product: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
        x.float(), scale if is_finite else 1.0, INT8_ZERO_POINT, weight.packed
    )
    if not is_finite:
        product.mul_(scale)
    if addend is not None:
        product.add_(addend)
    return product.to(x.dtype)

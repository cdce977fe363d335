"""How the products of an LSTM's steps are laid out: by oneDNN, by FBGEMM, in 8 bits, for one row.

All of PyTorch's private operators are used here, and nowhere else.
"""

import ctypes
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
BLOCK_SIZES = (256, 128, 64, 48, 32, 16)  # of a `RowWeight`, the fastest first
MIN_BLOCKS = 4  # of a `RowWeight` that we lay out, so that several threads have one each
TINY = torch.finfo(torch.float32).tiny  # so that rows of zeros have a scale
TRIAL_LOCK = threading.Lock()  # held while `can_multiply_int8_row` tries

Quantization = Literal["int8"] | None


@functools.cache
def can_pack(dtype: torch.dtype, device: str) -> bool:
    """Whether oneDNN's packed products are there, and right, for a dtype on a kind of device.

    They are private operators of PyTorch, so they are tried once rather than trusted.
    """
    if device != "cpu":
        return False
    try:
        weight = torch.ones(32, 16, dtype=dtype)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 2)
        product = torch.ops.mkldnn._linear_pointwise(weight[:2], packed, None, "none", [], "")
        total = torch.ops.mkldnn._linear_pointwise.binary(weight[:2], product, packed, None, "add")
    except (AttributeError, RuntimeError):
        return False
    return bool((total == 32).all())


class Int8Weight(NamedTuple):
    """A weight in 8 bits, each of its outputs with a scale of its own."""

    packed: Tensor  # mkldnn
    scales: Tensor  # (out,)
    zero_points: Tensor  # (out,), all 0


def pack_weight(weight: Tensor) -> Tensor:
    """Lay a weight `(out, in)` out for products with few rows; itself where nothing does so.

    Where MKL is slow with few rows, the packed product in float32 is 2.5 times as fast.
    """
    if can_pack(weight.dtype, weight.device.type):
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKING_ROWS)
        return packed
    return weight


def round_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a weight `(out, in)` to 8 bits; give it and the scales of its outputs `(out)`."""
    scales = weight.abs().amax(1).float().add_(TINY).div_(INT8_MAX)
    return (weight / scales[:, None]).round_().to(torch.int8), scales


def pack_int8_weight(weight: Tensor) -> Int8Weight:
    """Round a weight `(out, in)` to 8 bits and lay it out.

    Raises:
        ValueError: If this PyTorch, or this device, has no such products.
    """
    rounded, scales = round_weight(weight)
    try:
        packed = torch.ops.onednn.qlinear_prepack(rounded, None)
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        raise ValueError(
            f'Expected int8 products of oneDNN for quantization="int8" on {weight.device}, found '
            "none: they are there on processors, in PyTorch for x86 and Arm. Use the device cpu, "
            "or quantization=None."
        ) from error
    return Int8Weight(packed, scales, torch.zeros(len(scales), dtype=torch.int64))


class RowWeight(NamedTuple):
    """A weight laid out for products with one row, as an embedding bag computes them.

    `x @ weight^T` is then a sum of the weight's columns, each times a number of x. The outputs are
    cut into blocks, each a bag, and a column's part in a block is a row of the table. This passes
    through memory once, in order, with prefetching: two thirds of the time of oneDNN's product.
    """

    table: Tensor  # (blocks * in, out / blocks)
    indices: Tensor  # int32, (blocks * in): all rows of the table
    offsets: Tensor  # int32, (blocks): where each bag begins
    memory: Tensor  # must live as long as the table, which may be a view of it


class Int8RowWeight(NamedTuple):
    """A weight in 8 bits, laid out by FBGEMM, which is faster than oneDNN with one row."""

    packed: Any


Packed = Tensor | Int8Weight | RowWeight | Int8RowWeight


@functools.cache
def has_fbgemm() -> bool:
    """Whether PyTorch has FBGEMM, without which embedding bags are slow."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def pack_for_row(weight: Tensor, packed: Tensor | Int8Weight) -> Packed:
    """Lay a weight `(out, in)` out for products with one row only.

    Args:
        weight: In the dtype of the products.
        packed: The same, laid out for any number of rows. In float32 its memory is shared.

    Returns:
        The weight, laid out; or `packed`, where nothing better is there.
    """
    if not has_fbgemm():
        return packed
    if isinstance(packed, Int8Weight):
        engine = torch.backends.quantized.engine  # lays out; FBGEMM, unless somebody changed it
        return pack_int8_for_row(weight) if can_multiply_int8_row(engine) else packed
    if not packed.is_mkldnn:
        return packed
    outputs, inputs = weight.shape
    if weight.dtype == torch.float32:
        table = view_as_table(packed, weight)
    else:
        most = outputs // MIN_BLOCKS
        sizes = [size for size in BLOCK_SIZES if size <= most and not outputs % size]
        table = cut_into_blocks(weight, sizes[0]).contiguous() if sizes else None
    if table is None:
        return packed
    indices = torch.arange(outputs * inputs // table.shape[-1], dtype=torch.int32)
    return RowWeight(table.flatten(0, 1), indices, indices[::inputs].contiguous(), packed)


def cut_into_blocks(weight: Tensor, size: int) -> Tensor:
    """View a weight `(out, in)` as `(blocks, in, size)`, blocks of its outputs."""
    return weight.unflatten(0, (-1, size)).transpose(1, 2)


def view_as_table(packed: Tensor, weight: Tensor) -> Tensor | None:
    """View what oneDNN laid out in float32 as blocks of outputs, `(blocks, in, out / blocks)`.

    Returns:
        The view, valid as long as `packed`; None if the layout, compared with the weight, is not
        such a one.
    """
    try:
        num_bytes = torch.ops.mkldnn._nbytes(packed)
        address = torch.ops.mkldnn.data_ptr(packed)
    except (AttributeError, RuntimeError):  # they are private, as those of `can_pack`
        return None
    if num_bytes != weight.nbytes:  # there is padding
        return None
    array = (ctypes.c_float * weight.numel()).from_address(address)
    numbers = torch.frombuffer(array, dtype=torch.float32)
    for size in BLOCK_SIZES:
        if not len(weight) % size:
            blocks = cut_into_blocks(weight, size)
            table = numbers.view(blocks.shape)
            if torch.equal(table, blocks):
                return table
    return None


def pack_int8_for_row(weight: Tensor) -> Int8RowWeight:
    """Round a weight `(out, in)` to the same 8 bits as `pack_int8_weight`, and lay it out."""
    rounded, scales = round_weight(weight)
    zero_points = torch.zeros(len(scales), dtype=torch.int64)
    quantized = torch._make_per_channel_quantized_tensor(rounded, scales, zero_points, 0)
    return Int8RowWeight(torch.ops.quantized.linear_prepack(quantized, None))


@functools.cache
def can_multiply_int8_row(engine: str) -> bool:
    """Whether FBGEMM's products in 8 bits are there, and do not saturate, as they may without VNNI.

    They are part of PyTorch's older quantization, which will go one day.
    """
    x = torch.ones(1, 64)
    try:
        # PyTorch warns of that, but once. Changing how warnings go is not safe in two threads.
        with TRIAL_LOCK, warnings.catch_warnings(action="ignore"):
            weight = pack_int8_for_row(x.expand(32, 64))
        product = multiply_int8_row(x, weight)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.allclose(product, torch.tensor(64.0))


def multiply_int8_row(x: Tensor, weight: Int8RowWeight) -> Tensor:
    """Do what `multiply_int8` does, with one row."""
    scale = torch.linalg.vector_norm(x, math.inf).item() / INT8_MAX
    scale = max(scale, TINY)  # in this order: of NaN, it is NaN
    is_finite = math.isfinite(scale)
    product: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
        x.float(), scale if is_finite else 1.0, INT8_ZERO_POINT, weight.packed
    )
    if not is_finite:
        product.mul_(scale)
    return product.to(x.dtype)


def multiply_row(x: Tensor, weight: Packed) -> Tensor:
    """Compute `x @ weight^T` of one row, without autograd."""
    if isinstance(weight, Int8RowWeight):
        return multiply_int8_row(x, weight)
    if not isinstance(weight, RowWeight):
        return multiply(x, weight)
    factors = x.expand(len(weight.offsets), -1).reshape(-1)
    product, *_ = torch.embedding_bag(
        weight.table, weight.indices, weight.offsets, False, 0, False, factors
    )  # neither scaled by frequency, nor a mean, nor with sparse gradients
    return product.view(1, -1)


def multiply(
    x: Tensor,
    weight: Tensor | Int8Weight,
    bias: Tensor | None = None,
    added: Tensor | None = None,
) -> Tensor:
    """Compute `x @ weight^T`, plus a bias `(out)` or an addend `(rows, out)`, without autograd."""
    product: Tensor
    if isinstance(weight, Int8Weight):
        return multiply_int8(x, weight, bias if added is None else added)
    if not weight.is_mkldnn:
        return F.linear(x, weight, bias) if added is None else torch.addmm(added, x, weight.t())
    if added is None:
        product = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    else:
        product = torch.ops.mkldnn._linear_pointwise.binary(x, added, weight, None, "add")
    return product


def multiply_int8(x: Tensor, weight: Int8Weight, added: Tensor | None) -> Tensor:
    """Compute `x @ weight^T + added` with `x` rounded to 8 bits, each row with its own scale.

    A row's result so does not depend on the other rows, as it would with a scale for all of them.
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
    product = product.mul_(scales) if added is None else torch.addcmul(added, product, scales)
    return product.to(x.dtype)

"""The clipped, projected LSTM over packed time steps: the one place where speed lives.

Packed steps: the words of a batch, time step by time step, as in `PackedSequence.data`. The batch's
rows are sorted by length, so that the rows alive at a step are always the first ones:

    inputs = [step 0 of rows 0, 1, 2; step 1 of rows 0, 1; step 2 of row 0], batch_sizes = [3, 2, 1]

What takes the time is `h @ W_h^T`, step by step, with a handful of rows. Four things make it fast:
weights laid out once for oneDNN (`pack_weight`); every product that need not wait for its step done
for many steps at once; elementwise work in place; long steps in a thread a direction. Of one row,
such a product is bound by memory, and has a layout of its own (`pack_for_row`).
"""

import contextlib
import ctypes
import functools
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_elmo import ElmoConfig

MAX_CHUNK_STEPS = 128  # rows of the input product at a time: bounds memory, and stays in cache
PACKING_ROWS = 64  # what oneDNN lays weights out for; that layout serves any number of rows
INT8_ZERO_POINT = 128  # activations are unsigned in oneDNN's fast products
INT8_MAX = 127
BLOCK_SIZES = (256, 128, 64, 48, 32, 16)  # of a `RowWeight`, the fastest first
MIN_BLOCKS = 4  # of a `RowWeight` that we lay out, so that several threads have one each
TINY = torch.finfo(torch.float32).tiny  # so that rows of zeros have a scale
FEW_NUMBERS = 2**13  # below, oneDNN's tanh costs more than it spares
# Multiplications of a step, in float32, from which on a thread for each direction pays: in shorter
# ones, the threads wait for each other between their operations, for Python's lock.
LONG_STEP = 2**24
REDUCED_SPEED = 3  # of products in bfloat16 and int8, about, beside float32
TRIAL_LOCK = threading.Lock()  # held while `can_multiply_int8_row` tries

State = tuple[Tensor, Tensor]  # h (batch, projection_size), c (batch, cell_size)
Quantization = Literal["int8"] | None


def lstm_step(
    gates: Tensor, cell: Tensor, projection_weight: Tensor | None, config: ElmoConfig
) -> State:
    """Compute one time step from the sums of its gates: the reference of all that follows.

    `c = sigmoid(f + forget_bias) * c + sigmoid(i) * tanh(j)`, `h = (sigmoid(o) * tanh(c)) @ W^T`,
    both clipped (Sak et al. 2014; TensorFlow's `LSTMCell`). The clipped values are the ones that go
    on to the next step; an output that is not projected is not clipped.

    Args:
        gates: `x @ W_x^T + h @ W_h^T + bias`, gates in the order i, f, o, j, shape
            `(batch, 4 * cell_size)`.
        cell: State c of the step before, shape `(batch, cell_size)`.
        projection_weight: Shape `(projection_size, cell_size)`, or None for no projection.
        config: Its forget bias and clips are used.

    Returns:
        h `(batch, projection_size)` and c `(batch, cell_size)`.
    """
    i, f, o, j = gates.chunk(4, dim=1)
    cell = torch.sigmoid(f + config.forget_bias) * cell + torch.sigmoid(i) * torch.tanh(j)
    if config.cell_clip is not None:
        cell = cell.clamp(-config.cell_clip, config.cell_clip)
    output = torch.sigmoid(o) * torch.tanh(cell)
    if projection_weight is not None:
        output = F.linear(output, projection_weight)
        if config.projection_clip is not None:
            output = output.clamp(-config.projection_clip, config.projection_clip)
    return output, cell


# ---------------------------------------------------------------------------------------------
# Products
# ---------------------------------------------------------------------------------------------


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


# ---------------------------------------------------------------------------------------------
# One layer of one direction, forth and back
# ---------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """How a layer of one direction is to be run."""

    config: ElmoConfig
    batch_sizes: list[int]
    reverse: bool
    dtype: torch.dtype  # of the products
    quantization: Quantization = None  # of the products
    training: bool = False

    @property
    def wide_dtype(self) -> torch.dtype:
        """The dtype of elementwise work and of the cell."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def times(self) -> range:
        """The time steps in the order in which they are run."""
        return range(len(self.batch_sizes))[:: -1 if self.reverse else 1]

    @property
    def is_reduced(self) -> bool:
        """Whether products have less than the precision of elementwise work."""
        return self.dtype != self.wide_dtype or self.quantization is not None

    @property
    def is_row(self) -> bool:
        """Whether each step has one row."""
        return self.batch_sizes[0] == self.batch_sizes[-1] == 1

    @property
    def has_long_steps(self) -> bool:
        """Whether a step's product takes long enough for a thread for each direction to pay."""
        rows = sum(self.batch_sizes) / len(self.batch_sizes)
        multiplications = rows * 4 * self.config.cell_size * self.config.projection_size
        is_fast = self.is_reduced and self.dtype != torch.float16
        return multiplications >= LONG_STEP * (REDUCED_SPEED if is_fast else 1)

    def chunks(self) -> Iterator[range]:
        """Cut `times` into ranges of about `MAX_CHUNK_STEPS` rows."""
        start = rows = 0
        for position, time in enumerate(self.times):
            if rows and rows + self.batch_sizes[time] > MAX_CHUNK_STEPS:
                yield self.times[start:position]
                start, rows = position, 0
            rows += self.batch_sizes[time]
        if rows:
            yield self.times[start:]


class Weights(NamedTuple):
    """The weights of a layer, as `ElmoLstm` holds them."""

    input_weight: Tensor
    state_weight: Tensor
    bias: Tensor
    projection_weight: Tensor | None


class PackedWeights(NamedTuple):
    """The weights of a layer, ready for products; the forget bias is in the bias."""

    input_weight: Tensor | Int8Weight
    state_weight: Tensor | Int8Weight
    bias: Tensor
    projection_weight: Tensor | Int8Weight | None


class RowWeights(NamedTuple):
    """The same, ready for steps of one row."""

    input_weight: Tensor | Int8Weight
    state_weight: Packed
    bias: Tensor
    projection_weight: Packed | None


def pack_weights(
    weights: Weights, config: ElmoConfig, dtype: torch.dtype, quantization: Quantization = None
) -> PackedWeights:
    """Make the weights of a layer ready: cast, laid out, the forget bias added."""

    def pack(weight: Tensor) -> Tensor | Int8Weight:
        weight = weight.detach().to(dtype)
        return pack_weight(weight) if quantization is None else pack_int8_weight(weight)

    projection_weight = weights.projection_weight
    bias = weights.bias.detach().to(torch.promote_types(dtype, torch.float32), copy=True)
    bias[config.cell_size : 2 * config.cell_size] += config.forget_bias
    return PackedWeights(
        pack(weights.input_weight),
        pack(weights.state_weight),
        bias.to(dtype),
        None if projection_weight is None else pack(projection_weight),
    )


def pack_weights_for_row(weights: Weights, packed: PackedWeights) -> RowWeights:
    """Lay out anew what is multiplied step by step."""
    dtype = packed.bias.dtype
    projection_weight: Packed | None = packed.projection_weight
    if weights.projection_weight is not None and packed.projection_weight is not None:
        projection_weight = pack_for_row(
            weights.projection_weight.detach().to(dtype), packed.projection_weight
        )
    state_weight = pack_for_row(weights.state_weight.detach().to(dtype), packed.state_weight)
    return RowWeights(packed.input_weight, state_weight, packed.bias, projection_weight)


class Trace(NamedTuple):
    """What a run leaves for its gradient: a tensor for each time step, in the order of time."""

    gates: list[Tensor]  # after their activations, (alive, 4 * cell_size)
    cells: list[Tensor]  # clipped, (alive, cell_size)
    cell_tanhs: list[Tensor]  # (alive, cell_size)


def tanh(x: Tensor) -> Tensor:
    """Compute `tanh(x)`: of many numbers by oneDNN, of few as `-m / (m + 2)`, `m = expm1(-2 * x)`.

    The first errs by 1e-7 of the value, the second by 2e-7, in a third or half of the time of
    PyTorch's.
    """
    if x.numel() > FEW_NUMBERS and x.dtype == torch.float32 and can_pack(x.dtype, x.device.type):
        return x.to_mkldnn().tanh_().to_dense()
    x = x.clamp(min=-40).mul_(-2).expm1_()  # below, the exponential would overflow
    return x.div_(-2 - x)


def activate(gates: Tensor, cell: Tensor, cell_clip: float | None) -> tuple[Tensor, Tensor]:
    """Activate the gates and advance the cell, both in place.

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


def activate_roughly(gates: Tensor, cell: Tensor, cell_clip: float | None) -> tuple[Tensor, Tensor]:
    """Do what `activate` does with `tanh(x) = 2 * sigmoid(2 * x) - 1`, the fastest on a CPU.

    The errors of its cancellation, 1e-7, would double those of states in float32; reduced products
    and training do not mind them.
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


@functools.cache
def choose_activation(device: str, is_rough: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """Choose `activate`, or the kernel that does the same on a GPU where Triton is there."""
    if device != "cuda":
        return activate_roughly if is_rough else activate
    try:
        from .lstm_triton import activate as activate_on_gpu
    except ImportError:
        return activate
    return activate_on_gpu


def run_layer(
    plan: Plan,
    inputs: Tensor,
    h: Tensor,
    c: Tensor,
    weights: PackedWeights,
    trace: Trace | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer of one direction.

    Args:
        plan: How.
        inputs: Packed steps, shape `(steps, projection_size)`.
        h: State, shape `(batch, projection_size)`.
        c: State, shape `(batch, cell_size)`.
        weights: The layer's, packed.
        trace: Lists with a place for each time step, to be filled; None = no gradient is wanted.

    Returns:
        Outputs `(steps, projection_size)`, and the new h and c.
    """
    sizes, dtype, wide = plan.batch_sizes, plan.dtype, plan.wide_dtype
    cell_clip, projection_clip = plan.config.cell_clip, plan.config.projection_clip
    new_h, new_c = h.to(dtype, copy=True), c.to(wide, copy=True)
    outputs = torch.empty_like(inputs, dtype=dtype)
    input_steps, output_steps = inputs.split(sizes), outputs.split(sizes)
    activate_step = choose_activation(inputs.device.type, plan.is_reduced or plan.training)
    step_h, cell = new_h[:0], new_c[:0]
    for times in plan.chunks():
        chunk = torch.cat([input_steps[t] for t in times]).to(dtype)
        sums = multiply(chunk, weights.input_weight, weights.bias)
        for t, step_sums in zip(times, sums.split([sizes[t] for t in times]), strict=True):
            if not sizes[t]:
                continue
            if sizes[t] != len(cell):
                step_h, cell = new_h[: sizes[t]], new_c[: sizes[t]]
            gates = multiply(step_h, weights.state_weight, added=step_sums).to(wide)
            output, cell_tanh = activate_step(gates, cell, cell_clip)
            if weights.projection_weight is not None:
                output = multiply(output.to(dtype), weights.projection_weight)
                if projection_clip is not None:
                    output.clamp_(-projection_clip, projection_clip)
            output_steps[t].copy_(output)
            step_h.copy_(output)
            if trace is not None:
                trace.gates[t], trace.cells[t], trace.cell_tanhs[t] = gates, cell.clone(), cell_tanh
        del sums, step_sums  # before the next chunk's take as much again
    return outputs, new_h.to(h.dtype), new_c.to(c.dtype)


def run_row(
    plan: Plan, inputs: Tensor, h: Tensor, c: Tensor, weights: RowWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """Do what `run_layer` does without a gradient, with one row in each step.

    Its work is so small that the number of operations counts: views are made for many steps at
    once, and tanh is PyTorch's own, which is the fastest for so few numbers, and exact.
    """
    dtype, wide, cell_size = plan.dtype, plan.wide_dtype, plan.config.cell_size
    cell_clip, projection_clip = plan.config.cell_clip, plan.config.projection_clip
    new_h, new_c = h.clone(), c.to(wide, copy=True)
    step_h, cell = h[:1].to(dtype), new_c[:1]
    outputs = torch.empty_like(inputs, dtype=dtype)
    output_steps = outputs.split(1)
    for times in plan.chunks():
        start, stop = min(times), max(times) + 1
        sums = multiply(inputs[start:stop].to(dtype), weights.input_weight, weights.bias).to(wide)
        parts = sums, sums[:, : 3 * cell_size], *sums.chunk(4, dim=1)
        steps = list(zip(*(part.split(1) for part in parts), strict=True))
        for t in times:
            gates, ifo, i, f, o, j = steps[t - start]  # the others are views of the first
            gates.add_(multiply_row(step_h, weights.state_weight))
            ifo.sigmoid_()
            j.tanh_()
            cell.mul_(f).addcmul_(i, j)
            if cell_clip is not None:
                cell.clamp_(-cell_clip, cell_clip)
            output = torch.tanh(cell).mul_(o)
            if weights.projection_weight is not None:
                output = multiply_row(output.to(dtype), weights.projection_weight)
                if projection_clip is not None:
                    output.clamp_(-projection_clip, projection_clip)
            step_h = output_steps[t].copy_(output)
    new_h[:1] = step_h
    return outputs, new_h, new_c.to(c.dtype)


def states_before(states: Sequence[Tensor], initial: Tensor, plan: Plan) -> list[Tensor]:
    """Collect the states that the time steps started from, given those that they ended with."""
    before = []
    for t, alive in enumerate(plan.batch_sizes):
        earlier = t + 1 if plan.reverse else t - 1
        has_earlier = 0 <= earlier < len(states) and plan.batch_sizes[earlier]
        carried = states[earlier][:alive] if has_earlier else initial[:0]
        joined = initial[len(carried) : alive]
        before.append(torch.cat([carried, joined]) if len(joined) else carried)
    return before


def run_layer_backward(
    plan: Plan,
    inputs: Tensor,
    h: Tensor,
    c: Tensor,
    weights: Weights,
    outputs: Tensor,
    trace: Trace,
    grads: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of `run_layer`.

    Only those of the gates' sums are computed step by step; those of the weights are one product
    over all time steps each. A clip passes no gradient where its result is at the bound.

    Args:
        plan: As for `run_layer`.
        inputs: As for `run_layer`.
        h: As for `run_layer`.
        c: As for `run_layer`.
        weights: As `ElmoLstm` holds them.
        outputs: What the run returned.
        trace: What the run left.
        grads: Gradients of outputs, h and c.

    Returns:
        Gradients of inputs, h, c and the four weights.
    """
    config, sizes, wide, aten = plan.config, plan.batch_sizes, plan.wide_dtype, torch.ops.aten
    state_weight = pack_weight(weights.state_weight.to(plan.dtype).t())
    projection_weight = weights.projection_weight
    if projection_weight is not None:
        projection_weight = pack_weight(projection_weight.to(plan.dtype).t())
    sums = outputs.new_empty(len(outputs), 4 * config.cell_size)  # gradients of the gates' sums
    hidden = outputs.new_empty(len(outputs), config.cell_size)  # what was projected
    projected = torch.empty_like(outputs)  # gradients of what came of it
    scratch = sums.new_empty(max(sizes), 4 * config.cell_size, dtype=wide)
    steps = [value.split(sizes) for value in (grads[0], outputs, sums, hidden, projected)]
    cells_before = states_before(trace.cells, c.to(wide), plan)
    grad_h, grad_c = (grad.to(wide, copy=True) for grad in grads[1:])
    for t in reversed(plan.times):
        if not sizes[t]:
            continue
        step_grad, step_output, step_sums, step_hidden, step_projected = (s[t] for s in steps)
        i, f, o, j = trace.gates[t].chunk(4, dim=1)
        cell_tanh = trace.cell_tanhs[t]
        grad, grad_cell = grad_h[: sizes[t]], grad_c[: sizes[t]]
        grad.add_(step_grad)
        if projection_weight is not None:
            if config.projection_clip is not None:
                bound = config.projection_clip
                grad = aten.hardtanh_backward(grad, step_output.to(wide), -bound, bound)
            step_projected.copy_(grad)
            step_hidden.copy_(o * cell_tanh)
            grad = multiply(step_projected, projection_weight).to(wide)
        wide_sums = step_sums if sums.dtype == wide else scratch[: sizes[t]]
        of_i, of_f, of_o, of_j = wide_sums.chunk(4, dim=1)
        grad_cell.addcmul_(grad, aten.tanh_backward(o, cell_tanh))
        if config.cell_clip is not None:
            bound = config.cell_clip
            aten.hardtanh_backward.grad_input(
                grad_cell, trace.cells[t], -bound, bound, grad_input=grad_cell
            )
        torch.mul(grad_cell, j, out=of_i)
        torch.mul(grad_cell, cells_before[t], out=of_f)
        torch.mul(grad, cell_tanh, out=of_o)
        torch.mul(grad_cell, i, out=of_j)
        of_ifo, ifo = (x[:, : 3 * config.cell_size] for x in (wide_sums, trace.gates[t]))
        aten.sigmoid_backward.grad_input(of_ifo, ifo, grad_input=of_ifo)
        aten.tanh_backward.grad_input(of_j, j, grad_input=of_j)
        grad_cell.mul_(f)
        if wide_sums is not step_sums:
            step_sums.copy_(wide_sums)
        grad_h[: sizes[t]] = multiply(step_sums, state_weight)
    h_before = torch.cat(states_before(steps[1], h.to(plan.dtype), plan))
    kernel_inputs = torch.cat([inputs.to(plan.dtype), h_before], dim=1)
    grad_kernel = sums.t() @ kernel_inputs
    return (
        sums @ weights.input_weight.to(plan.dtype),
        grad_h,
        grad_c,
        *grad_kernel.chunk(2, dim=1),
        sums.sum(0),
        None if projection_weight is None else projected.t() @ hidden,
    )


# ---------------------------------------------------------------------------------------------
# Several directions at once, with gradients
# ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def start_threads(process: int, number: int, threads: int) -> ThreadPoolExecutor:
    """Start the threads that run the directions, with `threads // number` of PyTorch's own each.

    They are kept for the next call, and made anew after a fork (a new `process`), which leaves
    threads behind.
    """
    ready = threading.Barrier(number + 1)

    def set_up() -> None:
        torch.get_num_threads()  # or the first operation would set it anew
        torch.set_num_threads(max(1, threads // number))
        ready.wait()

    pool = ThreadPoolExecutor(number, "elmo-direction")
    for _ in range(number):
        pool.submit(set_up)
    ready.wait()
    torch.set_num_threads(threads)  # what threads still to come begin with: it has changed that
    return pool


def run_directions(function: Callable[[int], Any], plans: Sequence[Plan], device: str) -> list[Any]:
    """Call a function of the number of each plan, in a thread each if that pays, without autograd.

    Threads that each run one direction need not wait for each other at every operation, as
    PyTorch's threads must, and small operations, which PyTorch does not divide, run side by side.
    """

    def call(index: int) -> Any:
        autocast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if torch.amp.is_autocast_available(device):
            autocast = torch.autocast(device, enabled=False)
        with torch.no_grad(), autocast:  # in this thread: it has settings of its own
            return function(index)

    threads, number = torch.get_num_threads(), len(plans)
    if number == 1 or threads == 1 or device != "cpu" or not plans[0].has_long_steps:
        return [call(index) for index in range(number)]
    return list(start_threads(os.getpid(), number, threads).map(call, range(number)))


class _Recurrence(torch.autograd.Function):
    """`run_layer` for each direction, with gradients.

    Tensors go in and out flat, direction by direction: inputs, h, c and the four weights in;
    outputs, h and c out.
    """

    @staticmethod
    def forward(ctx: Any, plans: list[Plan], *tensors: Tensor) -> tuple[Tensor, ...]:
        directions = split_evenly(tensors, len(plans))
        traces = [
            Trace(*([tensors[0]] * len(plan.batch_sizes) for _ in Trace._fields)) for plan in plans
        ]

        def run(index: int) -> tuple[Tensor, ...]:
            inputs, h, c, *weights = directions[index]
            plan = plans[index]
            packed = pack_weights(Weights(*weights), plan.config, plan.dtype)
            return run_layer(plan, inputs, h, c, packed, traces[index])

        results = run_directions(run, plans, tensors[0].device.type)
        saved = [step for trace in traces for steps in trace for step in steps]
        ctx.plans = plans
        ctx.save_for_backward(*tensors, *(result[0] for result in results), *saved)
        return tuple(value for result in results for value in result)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        number, saved = len(ctx.plans), list(ctx.saved_tensors)
        start = number * (3 + len(Weights._fields))
        directions, outputs = split_evenly(saved[:start], number), saved[start : start + number]
        traces = split_evenly(saved[start + number :], number)
        direction_grads = split_evenly(grads, number)

        def run(index: int) -> tuple[Tensor | None, ...]:
            inputs, h, c, *weights = directions[index]
            trace = Trace(*split_evenly(traces[index], len(Trace._fields)))
            return run_layer_backward(
                ctx.plans[index],
                inputs,
                h,
                c,
                Weights(*weights),
                outputs[index],
                trace,
                direction_grads[index],
            )

        results = run_directions(run, ctx.plans, grads[0].device.type)
        return None, *(value for result in results for value in result)


def split_evenly(values: Sequence[Any], number: int) -> list[list[Any]]:
    """Split a sequence into `number` lists of one length."""
    length = len(values) // number
    return [list(values[index * length :][:length]) for index in range(number)]


class ElmoLstm(GradientCheckpointingLayer):
    """One layer of one direction of the biLM, its rows of gates in the order i, f, o, j."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config = config
        projection_size, cell_size = config.projection_size, config.cell_size
        self.input_weight = nn.Parameter(torch.empty(4 * cell_size, projection_size))
        self.state_weight = nn.Parameter(torch.empty(4 * cell_size, projection_size))
        self.bias = nn.Parameter(torch.empty(4 * cell_size))
        self.projection_weight = (
            nn.Parameter(torch.empty(projection_size, cell_size))
            if config.use_cell_projection
            else None
        )
        self.quantization: Quantization = None  # of products in inference
        # What they were packed for and from; packed for any number of rows, and for one.
        self._packed: tuple[tuple[Any, ...], PackedWeights, RowWeights | None] | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values as TensorFlow does: Glorot over the joint kernel `[x; h]`."""
        bound = math.sqrt(6 / (self.input_weight.shape[1] * 2 + self.input_weight.shape[0]))
        init.uniform_(self.input_weight, -bound, bound)
        init.uniform_(self.state_weight, -bound, bound)
        init.zeros_(self.bias)
        if self.projection_weight is not None:
            init.xavier_uniform_(self.projection_weight)

    def weights(self) -> Weights:
        """Give the four weights."""
        return Weights(self.input_weight, self.state_weight, self.bias, self.projection_weight)

    def pack(self, dtype: torch.dtype, quantization: Quantization = None) -> PackedWeights:
        """Pack the weights for products, or give those of the last time, if unchanged.

        Unchanged: the same memory, not written to since. Only writing through `weight.data` goes
        unseen; so nothing is kept of weights in training, and `train()`, `eval()` and loading begin
        anew.
        """
        weights = [weight for weight in self.weights() if weight is not None]
        marks = [(x.data_ptr(), 0 if x.is_inference() else x._version) for x in weights]
        key = (dtype, quantization, *marks)
        kept = self._packed
        if kept is None or kept[0] != key:
            kept = key, pack_weights(self.weights(), self.config, dtype, quantization), None
            if not (self.training and self.state_weight.requires_grad):
                self._packed = kept
        return kept[1]

    def pack_for_row(self, dtype: torch.dtype, quantization: Quantization = None) -> RowWeights:
        """Pack the weights for products with one row, or give those of the last time, likewise."""
        packed, kept = self.pack(dtype, quantization), self._packed
        if kept is not None and kept[1] is packed and kept[2] is not None:
            return kept[2]
        of_row = pack_weights_for_row(self.weights(), packed)
        if kept is not None and kept[1] is packed:
            self._packed = kept[0], packed, of_row
        return of_row

    def train(self, mode: bool = True) -> "ElmoLstm":
        """Set the mode, as `nn.Module`; see `pack`."""
        if mode or self.training:
            self._packed = None
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ElmoLstm":
        self._packed = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        self._packed = None
        super()._load_from_state_dict(*args)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_packed": None}  # packed tensors can be neither copied nor saved

    def forward(
        self, inputs: Tensor, batch_sizes: Sequence[int], state: State, *, reverse: bool = False
    ) -> tuple[Tensor, State]:
        """Run the layer over all time steps.

        Args:
            inputs: Packed steps, shape `(steps, projection_size)`.
            batch_sizes: Rows alive at each time step, never increasing; they sum to `steps`.
            state: h `(batch, projection_size)` and c `(batch, cell_size)` before the first step.
            reverse: Run from the last time step to the first, over the same packing: each row
                joins, with its state, at its own last word.

        Returns:
            Outputs, clipped, packed as `inputs`, shape `(steps, projection_size)`; and the state
            after the last step. A row without a step keeps its state.
        """
        (result,) = run_layers([self], [inputs], batch_sizes, [state], [reverse])
        return result


def run_layers(
    layers: Sequence[ElmoLstm],
    inputs: Sequence[Tensor],
    batch_sizes: Sequence[int],
    states: Sequence[State],
    reverses: Sequence[bool],
) -> list[tuple[Tensor, State]]:
    """Run a layer of each direction; arguments and result as `ElmoLstm.forward`'s, in lists."""
    if not len(inputs[0]):
        return list(zip(inputs, states, strict=True))
    pairs = list(zip(layers, reverses, strict=True))
    device, dtype = inputs[0].device.type, inputs[0].dtype
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    tensors = [
        tensor
        for layer, x, state in zip(layers, inputs, states, strict=True)
        for tensor in (x, *state, *layer.weights())
    ]
    has_gradient = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in tensors
    )
    training = layers[0].training
    quantization = None if has_gradient or training else layers[0].quantization
    plans = [
        Plan(layer.config, list(batch_sizes), reverse, dtype, quantization, training)
        for layer, reverse in pairs
    ]
    if has_gradient:
        outputs = _Recurrence.apply(plans, *tensors)  # type: ignore[no-untyped-call]  # torch's own
        results = split_evenly(outputs, len(plans))
    else:

        def run(index: int) -> tuple[Tensor, ...]:
            plan, layer, arguments = plans[index], layers[index], (inputs[index], *states[index])
            if plan.is_row and device == "cpu" and not training:
                return run_row(plan, *arguments, layer.pack_for_row(dtype, quantization))
            return run_layer(plan, *arguments, layer.pack(dtype, quantization))

        results = run_directions(run, plans, device)
    return [(output, (h, c)) for output, h, c in results]


class ElmoLstmStack(nn.Module):
    """All layers of one direction, with dropout before and residuals around them."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(ElmoLstm(config) for _ in range(config.num_hidden_layers))

    def forward(
        self, inputs: Tensor, batch_sizes: Sequence[int], state: State, *, reverse: bool = False
    ) -> tuple[list[Tensor], State]:
        """Run the layers one after the other.

        As in bilm-tf, the residual adds the *dropped* input, and the recurrent state is that
        before the residual.

        Args:
            inputs: Packed steps, shape `(steps, projection_size)`.
            batch_sizes: Rows alive at each time step, as for `ElmoLstm`.
            state: h `(layers, batch, projection_size)` and c `(layers, batch, cell_size)`.
            reverse: Run from the last time step to the first, as for `ElmoLstm`.

        Returns:
            The output of each layer, packed, shape `(steps, projection_size)`; and the new state.
        """
        (result,) = run_stacks([self], [inputs], batch_sizes, [state], [reverse])
        return result


def run_stacks(
    stacks: Sequence[ElmoLstmStack],
    inputs: Sequence[Tensor],
    batch_sizes: Sequence[int],
    states: Sequence[State],
    reverses: Sequence[bool],
) -> list[tuple[list[Tensor], State]]:
    """Run independent directions over one packing, at once where that is faster.

    Args:
        stacks: The directions.
        inputs: Packed steps of each, shape `(steps, projection_size)`.
        batch_sizes: Rows alive at each time step, the same for all.
        states: The state of each, as for `ElmoLstmStack`.
        reverses: Whether each runs from the last time step to the first.

    Returns:
        What each stack returns.
    """
    outputs: list[list[Tensor]] = []  # by layer, then direction, as are the states
    new_states: list[list[State]] = []
    for number, layers in enumerate(zip(*(stack.layers for stack in stacks), strict=True)):
        config = layers[0].config
        inputs = [F.dropout(x, config.dropout, layers[0].training) for x in inputs]
        layer_states = [(h[number], c[number]) for h, c in states]
        if layers[0].gradient_checkpointing and layers[0].training:  # transformers' wrapper does it
            results = [
                layer(x, batch_sizes, state, reverse=reverse)
                for layer, x, state, reverse in zip(
                    layers, inputs, layer_states, reverses, strict=True
                )
            ]
        else:
            results = run_layers(layers, inputs, batch_sizes, layer_states, reverses)
        if config.use_residual and number > 0:
            inputs = [y + x for (y, _), x in zip(results, inputs, strict=True)]
        else:
            inputs = [y for y, _ in results]
        outputs.append(inputs)
        new_states.append([state for _, state in results])
    return [
        (
            [layer_outputs[index] for layer_outputs in outputs],
            (
                torch.stack([layer_states[index][0] for layer_states in new_states]),
                torch.stack([layer_states[index][1] for layer_states in new_states]),
            ),
        )
        for index in range(len(stacks))
    ]

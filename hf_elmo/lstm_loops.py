"""How the steps of an LSTM layer are looped: forth, back, for one row; directions in threads."""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .configuration_elmo import ElmoConfig
from .lstm_products import (
    Int8Weight,
    Packed,
    Quantization,
    can_pack,
    multiply,
    multiply_row,
    pack_for_row,
    pack_int8_weight,
    pack_weight,
)

MAX_CHUNK_STEPS = 128  # rows of the input product at a time: bounds memory, and stays in cache
FEW_NUMBERS = 2**13  # below, oneDNN's tanh costs more than it spares
# Multiplications of a step, in float32, from which on a thread for each direction pays: in shorter
# ones, the threads wait for each other between their operations, for Python's lock.
LONG_STEP = 2**24
REDUCED_SPEED = 3  # of products in bfloat16 and int8, about, beside float32


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


def run_with_gradients(plans: list[Plan], *tensors: Tensor | None) -> list[list[Tensor]]:
    """Run `_Recurrence`; outputs, h and c of each direction."""
    outputs = _Recurrence.apply(plans, *tensors)  # type: ignore[no-untyped-call]  # torch's own
    return split_evenly(outputs, len(plans))


def split_evenly(values: Sequence[Any], number: int) -> list[list[Any]]:
    """Split a sequence into `number` lists of one length."""
    length = len(values) // number
    return [list(values[index * length :][:length]) for index in range(number)]

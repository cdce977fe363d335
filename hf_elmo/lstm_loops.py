"""Time loops of an LSTM layer: forward, backward, one thread for each direction."""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .configuration_elmo import ElmoConfig
from .lstm_products import can_pack, multiply, pack_weight

MAX_CHUNK_STEPS = 128  # rows of the input product at a time: bounds memory, and stays in cache
FEW_NUMBERS = 2**13  # below, oneDNN's tanh costs more than it saves
# Multiplications of a step, in float32, from which on a thread for each direction pays: in shorter
# steps, the threads wait for each other between their operations, for Python's lock.
LONG_STEP = 2**24
REDUCED_SPEED = 3  # of products in bfloat16, about, relative to float32
START_LOCK = threading.Lock()  # held while threads start: PyTorch's thread count differs meanwhile


class LayerRun(NamedTuple):
    """How one direction of a layer is run over one packing."""

    config: ElmoConfig
    batch_sizes: list[int]
    reverse: bool
    dtype: torch.dtype  # of the products
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
        return self.dtype != self.wide_dtype

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


class LayerWeights(NamedTuple):
    """Weights of one direction of a layer, as `ElmoLstm` holds them, or packed."""

    input_weight: Tensor  # (4 * cell_size, projection_size)
    state_weight: Tensor  # (4 * cell_size, projection_size)
    bias: Tensor  # (4 * cell_size,)
    projection_weight: Tensor | None  # (projection_size, cell_size)


def pack_weights(weights: LayerWeights, config: ElmoConfig, dtype: torch.dtype) -> LayerWeights:
    """Cast the weights of a layer, pack them for products, and add the forget bias."""
    projection_weight = weights.projection_weight
    bias = weights.bias.detach().to(torch.promote_types(dtype, torch.float32), copy=True)
    bias[config.cell_size : 2 * config.cell_size] += config.forget_bias
    return LayerWeights(
        pack_weight(weights.input_weight.detach().to(dtype)),
        pack_weight(weights.state_weight.detach().to(dtype)),
        bias.to(dtype),
        None if projection_weight is None else pack_weight(projection_weight.detach().to(dtype)),
    )


class SavedSteps(NamedTuple):
    """What a run saves for its gradient: a tensor for each time step, in the order of time."""

    gates: list[Tensor]  # i, f, o, j after their activations, (alive, 4 * cell_size)
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

    Args:
        gates: Their sums, shape `(alive, 4 * cell_size)`.
        cell: Of the step before, shape `(alive, cell_size)`.
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


def activate_roughly(gates: Tensor, cell: Tensor, cell_clip: float | None) -> tuple[Tensor, Tensor]:
    """Do what `activate` does with `tanh(x) = 2 * sigmoid(2 * x) - 1`, the fastest on a CPU.

    The subtraction errs by 1e-7, which would double the error of states in float32. For reduced
    products and training, that is small.
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
    run: LayerRun,
    inputs: Tensor,
    h: Tensor,
    c: Tensor,
    weights: LayerWeights,
    saved: SavedSteps | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one direction of a layer.

    Args:
        run: How.
        inputs: Packed steps, shape `(steps, projection_size)`.
        h: State, shape `(batch, projection_size)`.
        c: State, shape `(batch, cell_size)`.
        weights: The layer's, packed.
        saved: Lists with a place for each time step, to be filled; None = no gradient is wanted.

    Returns:
        Outputs `(steps, projection_size)`, and the new h and c.
    """
    sizes, dtype, wide = run.batch_sizes, run.dtype, run.wide_dtype
    cell_clip, projection_clip = run.config.cell_clip, run.config.projection_clip
    new_h, new_c = h.to(dtype, copy=True), c.to(wide, copy=True)
    outputs = torch.empty_like(inputs, dtype=dtype)
    input_steps, output_steps = inputs.split(sizes), outputs.split(sizes)
    activate_step = choose_activation(inputs.device.type, run.is_reduced or run.training)
    step_h, cell = new_h[:0], new_c[:0]
    for times in run.chunks():
        chunk = torch.cat([input_steps[t] for t in times]).to(dtype)
        sums = multiply(chunk, weights.input_weight, weights.bias)
        for t, step_sums in zip(times, sums.split([sizes[t] for t in times]), strict=True):
            if not sizes[t]:
                continue
            if sizes[t] != len(cell):
                step_h, cell = new_h[: sizes[t]], new_c[: sizes[t]]
            gates = multiply(step_h, weights.state_weight, step_sums).to(wide)
            output, cell_tanh = activate_step(gates, cell, cell_clip)
            if weights.projection_weight is not None:
                output = multiply(output.to(dtype), weights.projection_weight)
                if projection_clip is not None:
                    output.clamp_(-projection_clip, projection_clip)
            output_steps[t].copy_(output)
            step_h.copy_(output)
            if saved is not None:
                saved.gates[t], saved.cells[t], saved.cell_tanhs[t] = gates, cell.clone(), cell_tanh
        del sums, step_sums  # before the next chunk's take as much again
    return outputs, new_h.to(h.dtype), new_c.to(c.dtype)


def states_before(states: Sequence[Tensor], initial: Tensor, run: LayerRun) -> list[Tensor]:
    """Collect the states that the time steps started from, given those that they ended with."""
    before = []
    for t, alive in enumerate(run.batch_sizes):
        earlier = t + 1 if run.reverse else t - 1
        has_earlier = 0 <= earlier < len(states) and run.batch_sizes[earlier]
        carried = states[earlier][:alive] if has_earlier else initial[:0]
        joined = initial[len(carried) : alive]
        before.append(torch.cat([carried, joined]) if len(joined) else carried)
    return before


def activate_backward(
    grad_output: Tensor,
    grad_cell: Tensor,
    grad_sums: Tensor,
    step: Sequence[Tensor],
    cell_before: Tensor,
    cell_clip: float | None,
) -> None:
    """Compute the gradients of `activate`. A clip passes none where its result is at the bound.

    Args:
        grad_output: Gradient of the output before its projection, shape `(alive, cell_size)`.
        grad_cell: Gradient of the cell; changed in place into that of the cell before.
        grad_sums: Filled with the gradient of the gates' sums, shape `(alive, 4 * cell_size)`.
        step: The gates, the cell and its tanh, as `SavedSteps` has them.
        cell_before: The cell of the step before, shape `(alive, cell_size)`.
        cell_clip: Bound of the cell, or None.
    """
    aten = torch.ops.aten
    gates, cell, cell_tanh = step
    i, f, o, j = gates.chunk(4, dim=1)
    of_i, of_f, of_o, of_j = grad_sums.chunk(4, dim=1)
    grad_cell.addcmul_(grad_output, aten.tanh_backward(o, cell_tanh))
    if cell_clip is not None:
        aten.hardtanh_backward.grad_input(
            grad_cell, cell, -cell_clip, cell_clip, grad_input=grad_cell
        )
    torch.mul(grad_cell, j, out=of_i)
    torch.mul(grad_cell, cell_before, out=of_f)
    torch.mul(grad_output, cell_tanh, out=of_o)
    torch.mul(grad_cell, i, out=of_j)
    of_ifo, ifo = (x[:, : 3 * cell.shape[1]] for x in (grad_sums, gates))
    aten.sigmoid_backward.grad_input(of_ifo, ifo, grad_input=of_ifo)
    aten.tanh_backward.grad_input(of_j, j, grad_input=of_j)
    grad_cell.mul_(f)


def run_layer_backward(
    run: LayerRun,
    inputs: Tensor,
    h: Tensor,
    c: Tensor,
    weights: LayerWeights,
    outputs: Tensor,
    saved: SavedSteps,
    grads: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of `run_layer`.

    Only those of the gates' sums are computed step by step; those of the weights are one product
    over all time steps each.

    Args:
        run: As for `run_layer`.
        inputs: As for `run_layer`.
        h: As for `run_layer`.
        c: As for `run_layer`.
        weights: As `ElmoLstm` holds them.
        outputs: What the run returned.
        saved: What the run saved.
        grads: Gradients of outputs, h and c.

    Returns:
        Gradients of inputs, h, c and the four weights.
    """
    config, sizes, wide = run.config, run.batch_sizes, run.wide_dtype
    state_weight = pack_weight(weights.state_weight.to(run.dtype).t())
    projection_weight = weights.projection_weight
    if projection_weight is not None:
        projection_weight = pack_weight(projection_weight.to(run.dtype).t())
    grad_sums = outputs.new_empty(len(outputs), 4 * config.cell_size)  # of the gates' sums
    hidden = outputs.new_empty(len(outputs), config.cell_size)  # outputs before the projection
    grad_projected = torch.empty_like(outputs)  # after the projection, before the clip
    scratch = grad_sums.new_empty(max(sizes), 4 * config.cell_size, dtype=wide)
    steps = [x.split(sizes) for x in (grads[0], outputs, grad_sums, hidden, grad_projected)]
    cells_before = states_before(saved.cells, c.to(wide), run)
    grad_h, grad_c = (grad.to(wide, copy=True) for grad in grads[1:])
    for t in reversed(run.times):
        if not sizes[t]:
            continue
        step_grad, step_output, step_sums, step_hidden, step_projected = (s[t] for s in steps)
        grad = grad_h[: sizes[t]].add_(step_grad)
        if projection_weight is not None:
            if config.projection_clip is not None:
                bound = config.projection_clip
                grad = torch.ops.aten.hardtanh_backward(grad, step_output.to(wide), -bound, bound)
            step_projected.copy_(grad)
            o = saved.gates[t][:, 2 * config.cell_size : 3 * config.cell_size]
            step_hidden.copy_(o * saved.cell_tanhs[t])
            grad = multiply(step_projected, projection_weight).to(wide)
        wide_sums = step_sums if step_sums.dtype == wide else scratch[: sizes[t]]
        step = [values[t] for values in saved]
        grad_cell = grad_c[: sizes[t]]
        activate_backward(grad, grad_cell, wide_sums, step, cells_before[t], config.cell_clip)
        if wide_sums is not step_sums:
            step_sums.copy_(wide_sums)
        grad_h[: sizes[t]] = multiply(step_sums, state_weight)
    h_before = torch.cat(states_before(steps[1], h.to(run.dtype), run))
    grad_kernel = grad_sums.t() @ torch.cat([inputs.to(run.dtype), h_before], dim=1)
    return (
        grad_sums @ weights.input_weight.to(run.dtype),
        grad_h,
        grad_c,
        *grad_kernel.chunk(2, dim=1),
        grad_sums.sum(0),
        None if projection_weight is None else grad_projected.t() @ hidden,
    )


@functools.lru_cache(maxsize=1)
def start_threads(process: int, number: int, threads: int) -> ThreadPoolExecutor:
    """Start the threads that run the directions, with `threads // number` of PyTorch's own each.

    They are kept for the next call, and made anew after a fork (a new `process`), which leaves
    threads behind. All other threads keep the count that they have, and new ones begin with the
    count that they began with before.
    """
    together = threading.Barrier(number)

    def set_up() -> None:
        torch.get_num_threads()  # or the first operation would set it anew
        together.wait()  # so that each thread comes here once
        torch.set_num_threads(max(1, threads // number))  # also what new threads begin with

    with START_LOCK, ThreadPoolExecutor(1) as new_thread:
        count = new_thread.submit(torch.get_num_threads).result()
        pool = ThreadPoolExecutor(number, "elmo-direction")
        try:
            futures = [pool.submit(set_up) for _ in range(number)]
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        except BaseException:
            together.abort()  # releases the threads that wait for one that failed
            pool.shutdown()
            raise
        finally:
            new_thread.submit(torch.set_num_threads, count).result()
    return pool


def run_directions(
    function: Callable[[int], Any], runs: Sequence[LayerRun], device: str
) -> list[Any]:
    """Call a function of the number of each run, in a thread each if that pays, without autograd.

    Threads that each run one direction need not wait for each other at every operation, as
    PyTorch's threads must, and small operations, which PyTorch does not divide, run side by side.
    """

    def call(index: int) -> Any:
        autocast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if torch.amp.is_autocast_available(device):
            autocast = torch.autocast(device, enabled=False)
        with torch.no_grad(), autocast:  # in this thread: it has settings of its own
            return function(index)

    threads, number = torch.get_num_threads(), len(runs)
    if number == 1 or threads == 1 or device != "cpu" or not runs[0].has_long_steps:
        return [call(index) for index in range(number)]
    return list(start_threads(os.getpid(), number, threads).map(call, range(number)))


class _RunWithGradients(torch.autograd.Function):
    """`run_layer` for each direction, with gradients.

    Tensors go in and out flat, direction by direction: inputs, h, c and the four weights in;
    outputs, h and c out.
    """

    @staticmethod
    def forward(ctx: Any, runs: list[LayerRun], *tensors: Tensor) -> tuple[Tensor, ...]:
        directions = split_evenly(tensors, len(runs))
        saved = [
            SavedSteps(*([tensors[0]] * len(run.batch_sizes) for _ in SavedSteps._fields))
            for run in runs
        ]

        def run_direction(index: int) -> tuple[Tensor, ...]:
            inputs, h, c, *weights = directions[index]
            run = runs[index]
            packed = pack_weights(LayerWeights(*weights), run.config, run.dtype)
            return run_layer(run, inputs, h, c, packed, saved[index])

        results = run_directions(run_direction, runs, tensors[0].device.type)
        steps = [step for direction in saved for values in direction for step in values]
        ctx.runs = runs
        ctx.save_for_backward(*tensors, *(result[0] for result in results), *steps)
        return tuple(value for result in results for value in result)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        number, tensors = len(ctx.runs), list(ctx.saved_tensors)
        start = number * (3 + len(LayerWeights._fields))
        directions, outputs = split_evenly(tensors[:start], number), tensors[start:][:number]
        steps = split_evenly(tensors[start + number :], number)
        direction_grads = split_evenly(grads, number)

        def run_direction(index: int) -> tuple[Tensor | None, ...]:
            inputs, h, c, *weights = directions[index]
            saved = SavedSteps(*split_evenly(steps[index], len(SavedSteps._fields)))
            return run_layer_backward(
                ctx.runs[index],
                inputs,
                h,
                c,
                LayerWeights(*weights),
                outputs[index],
                saved,
                direction_grads[index],
            )

        results = run_directions(run_direction, ctx.runs, grads[0].device.type)
        return None, *(value for result in results for value in result)


def run_with_gradients(runs: list[LayerRun], *tensors: Tensor | None) -> list[list[Tensor]]:
    """Run the layer of each direction, with gradients.

    Args:
        runs: How.
        tensors: Inputs, h, c and the four weights of each direction.

    Returns:
        Outputs, h and c of each direction, as `run_layer` returns them.
    """
    outputs = _RunWithGradients.apply(runs, *tensors)  # type: ignore[no-untyped-call]  # torch's own
    return split_evenly(outputs, len(runs))


def split_evenly(values: Sequence[Any], number: int) -> list[list[Any]]:
    """Split a sequence into `number` lists of one length."""
    length = len(values) // number
    return [list(values[index * length :][:length]) for index in range(number)]

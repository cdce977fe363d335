"""Gradient of an LSTM layer, computed from the values that the forward pass saved."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .lstm_forward import LayerRun, LayerWeights, SavedSteps, pack_weights, run_layer
from .lstm_products import multiply, pack_weight
from .lstm_threads import run_directions


def states_before(states: Sequence[Tensor], initial: Tensor, run: LayerRun) -> list[Tensor]:
    """Collect the state before each time step, given the states after the steps."""
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
    """Compute the gradients of `activate`; a cell value at its bound passes no gradient.

    Args:
        grad_output: Gradient of the output before its projection, shape `(alive, cell_size)`.
        grad_cell: Gradient of the cell; replaced in place by the gradient of `cell_before`.
        grad_sums: Filled with the gradient of the gates before activation, shape
            `(alive, 4 * cell_size)`.
        step: The step's gates, cell and tanh of the cell, as in `SavedSteps`.
        cell_before: The cell of the previous step, shape `(alive, cell_size)`.
        cell_clip: Bound of the cell's absolute values; None = no bound.
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
    """Compute the gradients of inputs, h, c and the four weights of `run_layer`.

    The gradients of the gates before activation are computed step by step. Then each weight's
    gradient is one product over all time steps. `weights` are not packed, `outputs` and `saved` are
    results of the forward run, and `grads` are the gradients of outputs, h and c.
    """
    config, sizes, wide = run.config, run.batch_sizes, run.wide_dtype
    state_weight = pack_weight(weights.state_weight.to(run.dtype).t())
    projection_weight = weights.projection_weight
    if projection_weight is not None:
        projection_weight = pack_weight(projection_weight.to(run.dtype).t())
    grad_sums = outputs.new_empty(len(outputs), 4 * config.cell_size)  # before activation
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


class _RunWithGradients(torch.autograd.Function):
    """Autograd function of `run_with_gradients`; it returns all directions' results in a tuple."""

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
    """Run the layer of each direction, and record the run for autograd.

    `tensors` are the inputs, h, c and four weights of the first direction, then of the second
    direction. The result has a list of outputs, h and c for each direction.
    """
    outputs = _RunWithGradients.apply(runs, *tensors)  # type: ignore[no-untyped-call]  # torch's own
    return split_evenly(outputs, len(runs))


def split_evenly(values: Sequence[Any], number: int) -> list[list[Any]]:
    """Split a sequence into `number` lists of equal length."""
    length = len(values) // number
    return [list(values[index * length :][:length]) for index in range(number)]

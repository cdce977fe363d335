"""Forward pass of one direction of an LSTM layer: the loop over time steps."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .configuration_elmo import ElmoConfig
from .lstm_elementwise import activate, activate_fast
from .lstm_products import multiply, pack_weight

MAX_CHUNK_STEPS = 128  # rows of inputs multiplied at once; the product stays in the CPU cache
# Number of float32 multiplications in a step from which one thread per direction is faster. In
# shorter steps, the threads wait for Python's global interpreter lock between operations.
LONG_STEP = 2**24
REDUCED_SPEED = 3  # approximate speed of bfloat16 products, relative to float32


class LayerRun(NamedTuple):
    """Settings for a run of one direction of a layer over the packed sentences of a batch."""

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
        """Whether products have a lower precision than elementwise work."""
        return self.dtype != self.wide_dtype

    @property
    def has_long_steps(self) -> bool:
        """Whether steps are so long that one thread per direction saves time."""
        rows = sum(self.batch_sizes) / len(self.batch_sizes)
        multiplications = rows * 4 * self.config.cell_size * self.config.projection_size
        is_fast = self.is_reduced and self.dtype != torch.float16
        return multiplications >= LONG_STEP * (REDUCED_SPEED if is_fast else 1)

    def chunks(self) -> Iterator[range]:
        """Cut `times` into ranges of at most `MAX_CHUNK_STEPS` rows, or of one time step."""
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
    """Values saved for the gradient: one tensor per time step, in time order in both directions."""

    gates: list[Tensor]  # i, f, o, j after their activations, (alive, 4 * cell_size)
    cells: list[Tensor]  # clipped, (alive, cell_size)
    cell_tanhs: list[Tensor]  # (alive, cell_size)


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
        run: Settings of the run.
        inputs: Packed steps, shape `(steps, projection_size)`.
        h: Initial state, shape `(batch, projection_size)`.
        c: Initial state, shape `(batch, cell_size)`.
        weights: The layer's packed weights.
        saved: Lists with one item per time step, which this call sets; None = no gradient needed.

    Returns:
        Outputs `(steps, projection_size)`, and the new h and c.
    """
    sizes, dtype, wide = run.batch_sizes, run.dtype, run.wide_dtype
    cell_clip, projection_clip = run.config.cell_clip, run.config.projection_clip
    new_h, new_c = h.to(dtype, copy=True), c.to(wide, copy=True)
    outputs = torch.empty_like(inputs, dtype=dtype)
    input_steps, output_steps = inputs.split(sizes), outputs.split(sizes)
    is_fast = inputs.device.type == "cpu" and (run.is_reduced or run.training)
    activate_step = activate_fast if is_fast else activate
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
        del sums, step_sums  # before the next chunk allocates as much
    return outputs, new_h.to(h.dtype), new_c.to(c.dtype)

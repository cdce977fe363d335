"""The clipped, projected LSTM over packed time steps: formula, products, recurrence, layers.

Packed steps: the words of a batch, time step by time step, as in `PackedSequence.data`. The batch's
rows are sorted by length, so that the rows alive at a step (those with a word) are the first rows:

    inputs = [step 0 of rows 0, 1, 2; step 1 of rows 0, 1; step 2 of row 0], batch_sizes = [3, 2, 1]

PyTorch's autograd computes the gradients of dropout, of the product with the inputs and of its
bias. The recurrence has its own gradient, which is a third faster than autograd's.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_elmo import ElmoConfig

PACKING_ROWS = 64  # number of rows that oneDNN packs for; the layout serves any number

State = tuple[Tensor, Tensor]  # h (batch, projection_size), c (batch, cell_size)


def lstm_step(
    gates: Tensor, cell: Tensor, projection_weight: Tensor | None, config: ElmoConfig
) -> State:
    """Compute one time step from the gates before activation; the reference for the faster code.

    Args:
        gates: `W_x x + W_h h + bias`, before activation, shape `(batch, 4 * cell_size)`.
        cell: State c of the previous step, shape `(batch, cell_size)`.
        projection_weight: Shape `(projection_size, cell_size)`; None = no projection.
        config: Its forget bias and clips are used.

    Returns:
        h `(batch, projection_size)` and c `(batch, cell_size)`. The formula is that of `ElmoLstm`.
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


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Return whether oneDNN's packed products, private in PyTorch, are there and correct."""
    if not torch.backends.mkldnn.enabled:
        return False
    try:
        ones = torch.ones(32, 16, dtype=dtype, device="cpu")
        total = multiply(ones, torch.ops.mkldnn._reorder_linear_weight(ones, 2), ones @ ones.t())
    except (AttributeError, RuntimeError):
        return False
    return bool((total == 32).all())


def pack_weight(weight: Tensor) -> Tensor:
    """Pack a weight `(out, in)` for the products of one call; unchanged where that is impossible.

    With few rows, the packed product takes at most half the time of MKL's float32 product.
    """
    if weight.device.type != "cpu" or not can_pack(weight.dtype):
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKING_ROWS)
    return packed


def multiply(x: Tensor, weight: Tensor, addend: Tensor | None = None) -> Tensor:
    """Compute `x @ weight^T + addend` with a weight `(out, in)`, packed or not; no autograd."""
    if not weight.is_mkldnn:
        return F.linear(x, weight) if addend is None else torch.addmm(addend, x, weight.t())
    product: Tensor
    if addend is None:
        product = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    else:
        product = torch.ops.mkldnn._linear_pointwise.binary(x, addend, weight, None, "add")
    return product


def activate(gates: Tensor, cell: Tensor, cell_clip: float | None) -> Tensor:
    """Activate the gates `(alive, 4 * cell_size)` and advance the cell, in place.

    Returns tanh of the cell.
    """
    i, f, _, j = gates.chunk(4, dim=1)
    gates[:, : 3 * cell.shape[1]].sigmoid_()
    j.tanh_()
    cell.mul_(f).addcmul_(i, j)
    if cell_clip is not None:
        cell.clamp_(-cell_clip, cell_clip)
    return torch.tanh(cell)


class Recurrence(torch.autograd.Function):
    """The loop over time steps, given the part of the gates that is computed from the inputs."""

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        h: Tensor,
        c: Tensor,
        state_weight: Tensor,
        projection_weight: Tensor | None,
        config: ElmoConfig,
        sizes: Sequence[int],
        times: Sequence[int],
        learns: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the packed outputs and the new h and c; save each step if the weights learn."""
        dtype, wide = gates.dtype, torch.promote_types(gates.dtype, torch.float32)
        packed = pack_weight(state_weight.to(dtype))
        projection = None if projection_weight is None else pack_weight(projection_weight.to(dtype))
        clip = config.projection_clip
        new_h, new_c = h.to(dtype, copy=True), c.to(wide, copy=True)
        outputs = gates.new_empty(len(gates), h.shape[1])
        gate_steps, output_steps = gates.split(sizes), outputs.split(sizes)
        steps: list[list[Tensor]] = [[gates] * len(sizes) for _ in range(3)]
        for t in times:
            step_h, cell = new_h[: sizes[t]], new_c[: sizes[t]]
            step = multiply(step_h, packed, gate_steps[t]).to(wide)
            cell_tanh = activate(step, cell, config.cell_clip)
            output = step.chunk(4, dim=1)[2] * cell_tanh
            if projection is not None:
                output = multiply(output.to(dtype), projection)
                if clip is not None:
                    output.clamp_(-clip, clip)
            output_steps[t].copy_(output)
            step_h.copy_(output)
            if learns:
                steps[0][t], steps[1][t], steps[2][t] = step, cell.clone(), cell_tanh
        ctx.settings = config, sizes, times
        if learns:
            saved = (tensor for values in steps for tensor in values)
            ctx.save_for_backward(h, c, state_weight, projection_weight, outputs, *saved)
        return outputs, new_h.to(h.dtype), new_c.to(c.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor, grad_h: Tensor, grad_c: Tensor) -> Any:
        """Compute step by step the gradients of the gates, and from these all others at once."""
        config, sizes, times = ctx.settings
        h, c, state_weight, projection_weight, outputs, *saved = ctx.saved_tensors
        gates, cells, cell_tanhs = (saved[k * len(sizes) :][: len(sizes)] for k in range(3))
        dtype, wide, size = outputs.dtype, gates[0].dtype, config.cell_size
        packed = pack_weight(state_weight.to(dtype).t())
        projection, clip = None, config.projection_clip
        if projection_weight is not None:
            projection = pack_weight(projection_weight.to(dtype).t())
        aten = torch.ops.aten
        grad_gates = outputs.new_empty(len(outputs), 4 * size)  # before activation
        grad_all = torch.empty(sizes[0], 4 * size, dtype=wide, device=outputs.device)  # of a step
        hidden = outputs.new_empty(len(outputs), size)  # outputs before the projection
        grad_projected = torch.empty_like(outputs)  # after the projection, before the clip
        cells_before = states_before(cells, c.to(wide), sizes, times)
        steps = [
            x.split(sizes) for x in (grad_outputs, outputs, grad_gates, hidden, grad_projected)
        ]
        new_grad_h, new_grad_c = grad_h.to(wide, copy=True), grad_c.to(wide, copy=True)
        for t in reversed(times):
            step_grad, step_output, step_gates, step_hidden, step_projected = (s[t] for s in steps)
            i, f, o, j = gates[t].chunk(4, dim=1)
            grad = new_grad_h[: sizes[t]].add_(step_grad)
            if projection is not None:
                if clip is not None:
                    grad = aten.hardtanh_backward(grad, step_output.to(wide), -clip, clip)
                step_projected.copy_(grad)
                step_hidden.copy_(o * cell_tanhs[t])
                grad = multiply(step_projected, projection).to(wide)
            grad_cell = new_grad_c[: sizes[t]]
            grad_cell.addcmul_(grad, aten.tanh_backward(o, cell_tanhs[t]))
            if (bound := config.cell_clip) is not None:  # a cell at its bound passes no gradient
                grad_cell.copy_(aten.hardtanh_backward(grad_cell, cells[t], -bound, bound))
            ifo, of_j = grad_all[: sizes[t]].tensor_split([3 * size], dim=1)
            of_i, of_f, of_o = ifo.chunk(3, dim=1)
            torch.mul(grad_cell, j, out=of_i)
            torch.mul(grad_cell, cells_before[t], out=of_f)
            torch.mul(grad, cell_tanhs[t], out=of_o)
            torch.mul(grad_cell, i, out=of_j)
            aten.sigmoid_backward.grad_input(ifo, gates[t][:, : 3 * size], grad_input=ifo)
            aten.tanh_backward.grad_input(of_j, j, grad_input=of_j)
            grad_cell.mul_(f)
            step_gates.copy_(grad_all[: sizes[t]])
            new_grad_h[: sizes[t]] = multiply(step_gates, packed)
        h_before = torch.cat(states_before(steps[1], h.to(dtype), sizes, times))
        return (
            grad_gates,
            new_grad_h.to(h.dtype),
            new_grad_c.to(c.dtype),
            (grad_gates.t() @ h_before).to(state_weight.dtype),
            None if projection is None else (grad_projected.t() @ hidden).to(state_weight.dtype),
            *[None] * 4,
        )


def states_before(
    states: Sequence[Tensor], initial: Tensor, sizes: Sequence[int], times: Sequence[int]
) -> list[Tensor]:
    """Collect the state before each time step, given the states after the steps."""
    before, known = list(states), initial
    for t in times:
        before[t], rest = known.split([sizes[t], len(known) - sizes[t]])
        known = torch.cat([states[t], rest]) if len(rest) else states[t]
    return before


class ElmoLstm(GradientCheckpointingLayer):
    """One layer of one direction of the biLM: an LSTM with a projection and clips.

    At each time step, with `[;]` for concatenation and `clip_b(v) = min(max(v, -b), b)`:

        [i; f; o; j] = W_x x_t + W_h h_{t-1} + bias
        c_t = clip_cell(sigmoid(f + forget_bias) * c_{t-1} + sigmoid(i) * tanh(j))
        h_t = clip_projection(W_p (sigmoid(o) * tanh(c_t)))

    Without `W_p`, `h_t = sigmoid(o) * tanh(c_t)`. The next step reads the clipped values, which
    `nn.LSTM(proj_size=...)` cannot compute. `lstm_step` computes the same.

    Sources: Sak et al. 2014 (projection; here without peepholes), TensorFlow's `LSTMCell` (forget
    bias, clips; its order of gates is i, j, f, o), Peters et al. 2018 (the biLM).

    Attributes:
        input_weight: `W_x`, shape `(4 * cell_size, projection_size)`.
        state_weight: `W_h`, shape `(4 * cell_size, projection_size)`.
        bias: Shape `(4 * cell_size,)`.
        projection_weight: `W_p`, shape `(projection_size, cell_size)`; None = no projection.
    """

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
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values as TensorFlow does: Glorot over the joint kernel `[x; h]`."""
        bound = math.sqrt(6 / (self.input_weight.shape[1] * 2 + self.input_weight.shape[0]))
        init.uniform_(self.input_weight, -bound, bound)
        init.uniform_(self.state_weight, -bound, bound)
        init.zeros_(self.bias)
        if self.projection_weight is not None:
            init.xavier_uniform_(self.projection_weight)

    def forward(
        self, inputs: Tensor, batch_sizes: Sequence[int], state: State, *, reverse: bool = False
    ) -> tuple[Tensor, State]:
        """Run the layer over all time steps.

        Args:
            inputs: Packed steps, shape `(steps, projection_size)`.
            batch_sizes: Number of rows alive at each time step, never increasing. Their sum is
                `steps`.
            state: h `(batch, projection_size)` and c `(batch, cell_size)` before the first step.
            reverse: Run from the last time step to the first over the same packing. Each row
                starts from its state at its own last word.

        Returns:
            Outputs, packed as `inputs`, shape `(steps, projection_size)`; and the state after the
            last step. A row without a step keeps its state.
        """
        if not len(inputs):
            return inputs, state
        i, f, oj = self.bias.split([self.config.cell_size * n for n in (1, 1, 2)])
        bias = torch.cat([i, f + self.config.forget_bias, oj])
        gates = F.linear(inputs, self.input_weight, bias)
        times = [t for t, alive in enumerate(batch_sizes) if alive][:: -1 if reverse else 1]
        weights, learns = (self.state_weight, self.projection_weight), torch.is_grad_enabled()
        with torch.autocast(inputs.device.type, enabled=False):  # dtypes are those of `gates`
            output, *new_state = Recurrence.apply(  # type: ignore[no-untyped-call]  # torch's own
                gates, *state, *weights, self.config, batch_sizes, times, learns
            )
        return output, tuple(new_state)


class ElmoLstmStack(nn.Module):
    """All layers of one direction, with dropout before each, and residuals if configured."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(ElmoLstm(config) for _ in range(config.num_hidden_layers))

    @torch.compiler.disable  # the compiler knows no packed weights
    def forward(
        self, inputs: Tensor, batch_sizes: Sequence[int], state: State, *, reverse: bool = False
    ) -> tuple[list[Tensor], State]:
        """Run the layers one after the other.

        Residuals start at the second layer. As in bilm-tf, a residual connection adds the layer's
        input after dropout, and the recurrent state does not include that sum.

        Args:
            inputs: Packed steps, shape `(steps, projection_size)`.
            batch_sizes: Number of rows alive at each time step, as for `ElmoLstm`.
            state: h `(layers, batch, projection_size)` and c `(layers, batch, cell_size)`.
            reverse: Run from the last time step to the first, as for `ElmoLstm`.

        Returns:
            The output of each layer, packed, shape `(steps, projection_size)`; and the new state.
        """
        outputs: list[Tensor] = []
        states: list[State] = []
        for number, (layer, h, c) in enumerate(zip(self.layers, *state, strict=True)):
            x = F.dropout(inputs, self.config.dropout, self.training)
            inputs, new_state = layer(x, batch_sizes, (h, c), reverse=reverse)
            if self.config.use_residual and number > 0:
                inputs = inputs + x
            outputs.append(inputs)
            states.append(new_state)
        hs, cs = zip(*states, strict=True)
        return outputs, (torch.stack(hs), torch.stack(cs))

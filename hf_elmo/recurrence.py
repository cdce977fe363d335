"""The clipped, projected LSTM over packed time steps: the one place where speed lives.

Packed steps: the words of a batch, time step by time step, as in `PackedSequence.data`. The batch's
rows are sorted by length, so that the rows alive at a step are always the first ones:

    inputs = [step 0 of rows 0, 1, 2; step 1 of rows 0, 1; step 2 of row 0], batch_sizes = [3, 2, 1]
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_elmo import ElmoConfig

State = tuple[Tensor, Tensor]  # h (batch, projection_size), c (batch, cell_size)


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
            batch_sizes: Rows alive at each time step, never increasing; they sum to `steps`.
            state: h `(batch, projection_size)` and c `(batch, cell_size)` before the first step.
            reverse: Run from the last time step to the first, over the same packing: each row
                joins, with its state, at its own last word.

        Returns:
            Outputs, clipped, packed as `inputs`, shape `(steps, projection_size)`; and the state
            after the last step. A row without a step keeps its state.
        """
        gates = F.linear(inputs, self.input_weight, self.bias).split(list(batch_sizes))
        h, c = state
        outputs = [inputs[:0]] * len(gates)
        for t in reversed(range(len(gates))) if reverse else range(len(gates)):
            alive = batch_sizes[t]
            sums = gates[t] + F.linear(h[:alive], self.state_weight)
            outputs[t], cell = lstm_step(sums, c[:alive], self.projection_weight, self.config)
            h = torch.cat([outputs[t], h[alive:]])
            c = torch.cat([cell, c[alive:]])
        return torch.cat([inputs[:0], *outputs]), (h, c)


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
        outputs: list[Tensor] = []
        states: list[State] = []
        for number, layer in enumerate(self.layers):
            inputs = F.dropout(inputs, self.config.dropout, self.training)
            layer_state = state[0][number], state[1][number]
            layer_output, layer_state = layer(inputs, batch_sizes, layer_state, reverse=reverse)
            if self.config.use_residual and number > 0:
                layer_output = layer_output + inputs
            outputs.append(layer_output)
            states.append(layer_state)
            inputs = layer_output
        h, c = zip(*states, strict=True)
        return outputs, (torch.stack(h), torch.stack(c))


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
    return [
        stack(x, batch_sizes, state, reverse=reverse)
        for stack, x, state, reverse in zip(stacks, inputs, states, reverses, strict=True)
    ]

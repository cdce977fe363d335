"""The clipped, projected LSTM over packed time steps.

Packed steps: the words of a batch, time step by time step, as in `PackedSequence.data`. The batch's
rows are sorted by length, so that the rows alive at a step (those with a word) are the first rows:

    inputs = [step 0 of rows 0, 1, 2; step 1 of rows 0, 1; step 2 of row 0], batch_sizes = [3, 2, 1]

Most time is spent on `h @ W_h^T`, a product with few rows in every step. Four things save time:

- Weights are packed once for such products (`lstm_products`).
- The inputs of many steps are multiplied at once, since they do not depend on earlier steps.
- Elementwise work is done in place.
- Each direction has its own thread if steps are long (`lstm_threads`).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_elmo import ElmoConfig
from .lstm_backward import run_with_gradients
from .lstm_forward import LayerRun, LayerWeights, pack_weights, run_layer
from .lstm_products import choose_product_dtype
from .lstm_threads import run_directions
from .weight_fingerprint import KeptResult, fingerprint_weights

State = tuple[Tensor, Tensor]  # h (batch, projection_size), c (batch, cell_size)


def lstm_step(
    gates: Tensor, cell: Tensor, projection_weight: Tensor | None, config: ElmoConfig
) -> State:
    """Compute one time step from the gates before activation; the reference for the faster code.

    `c = sigmoid(f + forget_bias) * c + sigmoid(i) * tanh(j)`, `h = (sigmoid(o) * tanh(c)) @ W^T`,
    both clipped (Sak et al. 2014; TensorFlow's `LSTMCell`). The next step reads the clipped
    values; an output that is not projected is not clipped.

    Args:
        gates: `x @ W_x^T + h @ W_h^T + bias`, gates in the order i, f, o, j, shape
            `(batch, 4 * cell_size)`.
        cell: State c of the previous step, shape `(batch, cell_size)`.
        projection_weight: Shape `(projection_size, cell_size)`; None = no projection.
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
        self.packed = KeptResult[LayerWeights]()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values as TensorFlow does: Glorot over the joint kernel `[x; h]`."""
        bound = math.sqrt(6 / (self.input_weight.shape[1] * 2 + self.input_weight.shape[0]))
        init.uniform_(self.input_weight, -bound, bound)
        init.uniform_(self.state_weight, -bound, bound)
        init.zeros_(self.bias)
        if self.projection_weight is not None:
            init.xavier_uniform_(self.projection_weight)

    def weights(self) -> LayerWeights:
        """Return the four weights."""
        return LayerWeights(self.input_weight, self.state_weight, self.bias, self.projection_weight)

    def pack(self, dtype: torch.dtype) -> LayerWeights:
        """Pack the weights for products in a dtype, or return the cached packed weights.

        The cache is valid until the weights change (see `fingerprint_weights`). Weights that are
        being trained are not cached.
        """
        weights = self.weights()
        fingerprint = fingerprint_weights(
            self.config, [weight for weight in weights if weight is not None]
        )
        if fingerprint is None or (self.training and self.state_weight.requires_grad):
            self.packed.clear()
            return pack_weights(weights, self.config, dtype)
        compute = partial(pack_weights, weights, self.config, dtype)
        return self.packed.get((dtype, fingerprint), compute)

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
        (result,) = run_layers([self], [inputs], batch_sizes, [state], [reverse])
        return result


def run_layers(
    layers: Sequence[ElmoLstm],
    inputs: Sequence[Tensor],
    batch_sizes: Sequence[int],
    states: Sequence[State],
    reverses: Sequence[bool],
) -> list[tuple[Tensor, State]]:
    """Run a layer of each direction as in `ElmoLstm.forward`; lists have one item per direction."""
    if not len(inputs[0]):
        return list(zip(inputs, states, strict=True))
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
    output_dtype, dtype = dtype, choose_product_dtype(dtype, device)
    runs = [
        LayerRun(layer.config, list(batch_sizes), reverse, dtype, training)
        for layer, reverse in zip(layers, reverses, strict=True)
    ]
    if has_gradient:
        results = run_with_gradients(runs, *tensors)
    else:

        def run_direction(index: int) -> tuple[Tensor, ...]:
            run, layer, arguments = runs[index], layers[index], (inputs[index], *states[index])
            return run_layer(run, *arguments, layer.pack(dtype))

        results = run_directions(run_direction, runs, device)
    return [(output.to(output_dtype), (h, c)) for output, h, c in results]


class ElmoLstmStack(nn.Module):
    """All layers of one direction, with dropout before each, and residuals if configured."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(ElmoLstm(config) for _ in range(config.num_hidden_layers))

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
        (result,) = _run_plain_stacks([self], [inputs], batch_sizes, [state], [reverse])
        return result


def can_run_together(module: nn.Module) -> bool:
    """Return whether a call of an LSTM or an LSTM stack only runs its own `forward`.

    With hooks, wrappers (accelerate's offloading, peft's adapters) or checkpointing, a call does
    more, so the module itself must be called.
    """
    return (
        isinstance(module, ElmoLstm | ElmoLstmStack)
        and "forward" not in vars(module)  # accelerate replaces it
        and not (module._forward_hooks or module._forward_pre_hooks)
        and not (module._backward_hooks or module._backward_pre_hooks)
        and not (module.training and getattr(module, "gradient_checkpointing", False))
    )


@torch.compiler.disable
def run_stacks(
    stacks: Sequence[ElmoLstmStack],
    inputs: Sequence[Tensor],
    batch_sizes: Sequence[int],
    states: Sequence[State],
    reverses: Sequence[bool],
) -> list[tuple[list[Tensor], State]]:
    """Run independent directions over the same packed sentences, in parallel if that is faster.

    `torch.compile` skips this function, because its compiler does not support packed weights.

    Args:
        stacks: The directions.
        inputs: Packed steps of each direction, shape `(steps, projection_size)`.
        batch_sizes: Number of rows alive at each time step, the same for all directions.
        states: The state of each direction, as for `ElmoLstmStack`.
        reverses: Whether each direction runs from the last time step to the first.

    Returns:
        The result of each stack's `forward`.
    """
    return _run_together(_run_plain_stacks, stacks, inputs, batch_sizes, states, reverses)


def _run_together(
    run: Callable[..., list[Any]],
    modules: Sequence[nn.Module],
    inputs: Sequence[Tensor],
    batch_sizes: Sequence[int],
    states: Sequence[State],
    reverses: Sequence[bool],
) -> list[Any]:
    """Run all modules in one call of `run` if the result is the same; else call each module."""
    if all(map(can_run_together, modules)):
        return run(modules, inputs, batch_sizes, states, reverses)
    return [
        module(x, batch_sizes, state, reverse=reverse)
        for module, x, state, reverse in zip(modules, inputs, states, reverses, strict=True)
    ]


@torch.compiler.disable
def _run_plain_stacks(
    stacks: Sequence[ElmoLstmStack],
    inputs: Sequence[Tensor],
    batch_sizes: Sequence[int],
    states: Sequence[State],
    reverses: Sequence[bool],
) -> list[tuple[list[Tensor], State]]:
    config, training = stacks[0].config, stacks[0].training
    collected: list[tuple[list[Tensor], list[Tensor], list[Tensor]]] = [
        ([], [], []) for _ in stacks
    ]
    for number, layers in enumerate(zip(*(stack.layers for stack in stacks), strict=True)):
        inputs = [F.dropout(x, config.dropout, training) for x in inputs]
        layer_states = [(h[number], c[number]) for h, c in states]
        results = _run_together(run_layers, layers, inputs, batch_sizes, layer_states, reverses)
        if config.use_residual and number > 0:
            inputs = [y + x for (y, _), x in zip(results, inputs, strict=True)]
        else:
            inputs = [y for y, _ in results]
        for lists, y, (_, (h, c)) in zip(collected, inputs, results, strict=True):
            for values, value in zip(lists, (y, h, c), strict=True):
                values.append(value)
    return [(outputs, (torch.stack(hs), torch.stack(cs))) for outputs, hs, cs in collected]

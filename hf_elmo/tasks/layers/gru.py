"""A GRU's loop over time with its own backward pass, for training on a CPU.

Otherwise, torch would record about twenty operations per word. In small layers, recording takes
longer than the arithmetic.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd


def run_gru(
    x: Tensor, w_input: Tensor, w_state: Tensor, b_input: Tensor, b_state: Tensor
) -> Tensor:
    """Run one GRU layer like `torch.gru`, from a zero state, with all directions in one loop.

    `r_t = sigmoid(W_r x_t + a_r + U_r h_t-1 + b_r)`,
    `z_t = sigmoid(W_z x_t + a_z + U_z h_t-1 + b_z)`,
    `n_t = tanh(W_n x_t + a_n + r_t * (U_n h_t-1 + b_n))`, `h_t = (1 - z_t) * n_t + z_t * h_t-1`
    (Cho et al. 2014; `r_t` is applied after `U_n`, as in torch).

    Args:
        x: Words in each direction's reading order, `(directions, batch, tokens, input_size)`.
        w_input: `W`: the rows of r, z and n in this order, as in `torch.nn.GRU`;
            `(directions, 3 * hidden_size, input_size)`.
        w_state: `U`, `(directions, 3 * hidden_size, hidden_size)`.
        b_input: `a`, `(directions, 3 * hidden_size)`.
        b_state: `b`, `(directions, 3 * hidden_size)`.

    Returns:
        Shape `(directions, batch, tokens, hidden_size)`.
    """
    directions, batch, tokens, _ = x.shape
    size = w_state.shape[2]
    b_rz, b_n = b_state[:, None].split([2 * size, size], dim=2)
    bias = b_input[:, None] + F.pad(b_rz, (0, size))
    inputs = torch.baddbmm(bias, x.flatten(1, 2), w_input.transpose(1, 2))
    inputs = inputs.view(directions, batch, tokens, -1).permute(2, 0, 1, 3)
    states = _GruLoop.apply(inputs, w_state.transpose(1, 2), b_n)  # type: ignore[no-untyped-call]  # torch's
    return states.permute(1, 2, 0, 3)


class _GruLoop(torch.autograd.Function):
    """Loop over `(tokens, directions, batch, 3 * hidden_size)`; weight `U^T`, bias `b_n`."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        parts = [2 * weight.shape[1], weight.shape[1]]
        rz, n = (part.contiguous() for part in inputs.split(parts, dim=3))
        w_rz, w_n = (part.contiguous() for part in weight.split(parts, dim=2))
        products = torch.empty_like(n)  # U_n h + b_n
        states = inputs.new_zeros(len(inputs) + 1, *n.shape[1:])
        for t, h in enumerate(states[:-1].unbind()):
            r, z = rz[t].baddbmm_(h, w_rz).sigmoid_().chunk(2, dim=2)
            torch.baddbmm(bias, h, w_n, out=products[t])
            n[t].addcmul_(r, products[t]).tanh_()
            torch.lerp(n[t], h, z, out=states[t + 1])
        ctx.save_for_backward(rz, n, products, states, weight)
        return states[1:]

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx: Any, d_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rz, n, products, states, weight = ctx.saved_tensors
        (r, z), before = rz.chunk(2, dim=3), states[:-1]
        tokens, directions, batch, size = n.shape
        # Derivatives of h_t: by the arguments of both sigmoids and of tanh, and by U_n h_t-1 + b_n.
        by_n = (1 - z) * (1 - n * n)
        by_r = by_n * products * r * (1 - r)
        factors = torch.stack([by_r, (before - n) * z * (1 - z), by_n * r], dim=3)
        d_states, d_h = torch.empty_like(n), torch.zeros_like(n[0])
        back = weight.transpose(1, 2).contiguous()
        for t in reversed(range(tokens)):
            torch.add(d_outputs[t], d_h, out=d_states[t])
            factors[t].mul_(d_states[t, :, :, None])
            gates = factors[t].view(directions, batch, 3 * size)
            d_h = torch.baddbmm(z[t] * d_states[t], gates, back)
        flat = factors.transpose(0, 1).reshape(directions, tokens * batch, 3 * size)
        by_token = before.transpose(0, 1).reshape(directions, tokens * batch, size)
        d_inputs = torch.cat([factors[..., :2, :].flatten(3), d_states * by_n], dim=3)
        d_bias = flat[..., 2 * size :].sum(dim=1, keepdim=True)
        return d_inputs, by_token.transpose(1, 2) @ flat, d_bias

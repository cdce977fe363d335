"""The recurrence against NumPy in float64, in every implementation that this machine offers."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import cpu_offload
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from hf_elmo import ElmoConfig, lstm
from hf_elmo.lstm import ElmoLstm, ElmoLstmStack, State, lstm_step

BATCH_SIZES = [5, 5, 3, 2, 1, 1]
ONE_ROW = [1] * 5
SETTINGS = {
    "clips that fire": {},
    "no clips": {"cell_clip": None, "projection_clip": None},
    "no cell projection": {"use_cell_projection": False, "cell_size": 8},
    "no residual": {"use_residual": False},
    "stored forget bias": {"forget_bias": 0.0},
    "one layer": {"num_hidden_layers": 1},
}


def make_config(**settings: Any) -> ElmoConfig:
    sizes: dict[str, Any] = {
        "projection_size": 8,
        "cell_size": 16,
        "cell_clip": 0.3,
        "projection_clip": 0.2,
        "num_hidden_layers": 2,
    }
    return ElmoConfig(**(sizes | settings))


def make_stack(config: ElmoConfig, seed: int = 0) -> ElmoLstmStack:
    torch.manual_seed(seed)
    stack = ElmoLstmStack(config).eval()
    for parameter in stack.parameters():
        parameter.data.normal_(0, 0.5)
    return stack


def make_inputs(
    config: ElmoConfig,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    batch: int | None = None,
    seed: int = 1,
) -> tuple[Tensor, State]:
    torch.manual_seed(seed)
    batch = batch or max(batch_sizes)
    layers = config.num_hidden_layers
    x = torch.randn(sum(batch_sizes), config.projection_size)
    h = torch.randn(layers, batch, config.projection_size) * 0.2
    return x, (h, torch.randn(layers, batch, config.cell_size) * 0.2)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def clip(x: np.ndarray, bound: float | None) -> np.ndarray:
    return x if bound is None else np.clip(x, -bound, bound)


def reference(
    stack: ElmoLstmStack, x: Tensor, batch_sizes: Sequence[int], state: State, reverse: bool
) -> tuple[list[Tensor], State]:
    """Run each row of the batch on its own, word by word, in float64."""
    config = stack.config
    weights = {name: value.detach().double().numpy() for name, value in stack.named_parameters()}
    x, h, c = (value.double().numpy() for value in (x, *state))
    h, c, starts = h.copy(), c.copy(), np.cumsum([0, *batch_sizes])
    outputs = []
    for number in range(config.num_hidden_layers):
        w_x, w_h, bias, *projection = [
            value for name, value in weights.items() if name.startswith(f"layers.{number}.")
        ]
        y = np.zeros_like(x)
        for row in range(h.shape[1]):
            steps = [starts[t] + row for t, alive in enumerate(batch_sizes) if row < alive]
            for step in reversed(steps) if reverse else steps:
                i, f, o, j = np.split(w_x @ x[step] + w_h @ h[number, row] + bias, 4)
                cell = sigmoid(f + config.forget_bias) * c[number, row] + sigmoid(i) * np.tanh(j)
                c[number, row] = clip(cell, config.cell_clip)
                y[step] = (
                    sigmoid(o) * np.tanh(c[number, row])
                    if not projection
                    else clip(
                        projection[0] @ (sigmoid(o) * np.tanh(c[number, row])),
                        config.projection_clip,
                    )
                )
                h[number, row] = y[step]
        x = y + x if config.use_residual and number > 0 else y
        outputs.append(x)
    return [torch.tensor(value) for value in outputs], (torch.tensor(h), torch.tensor(c))


@pytest.fixture(params=["packed products", "plain products"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to run that this machine could be offered."""
    if request.param == "plain products":
        monkeypatch.setattr(lstm, "can_pack", lambda dtype: False)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("batch_sizes", [BATCH_SIZES, ONE_ROW], ids=["batch", "one row"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_stack_equals_rows_run_one_by_one(
    settings: dict[str, Any], reverse: bool, batch_sizes: list[int]
) -> None:
    config = make_config(**settings)
    stack = make_stack(config)
    x, state = make_inputs(config, batch_sizes, batch=6)
    expected = reference(stack, x, batch_sizes, state, reverse)
    with torch.no_grad():
        actual = stack(x, batch_sizes, state, reverse=reverse)
    assert_close(actual, expected, check_dtype=False)


def test_the_clips_of_these_tests_fire() -> None:
    config = make_config()
    x, state = make_inputs(config)
    with torch.no_grad():
        (bottom, _), (_, c) = make_stack(config)(x, BATCH_SIZES, state)
    assert 0.1 < (bottom.abs() == 0.2).double().mean() < 0.9
    assert 0.1 < (c.abs() == 0.3).double().mean() < 0.9


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("batch_sizes", [[], [0], [0, 0], [2, 0], [1, 1, 0]])
def test_rows_without_a_step_keep_their_state(batch_sizes: list[int], reverse: bool) -> None:
    config = make_config()
    x, state = make_inputs(config, batch_sizes, batch=3)
    with torch.no_grad():
        outputs, new_state = make_stack(config)(x, batch_sizes, state, reverse=reverse)
    assert [output.shape for output in outputs] == [(sum(batch_sizes), 8)] * 2
    idle = max(batch_sizes, default=0)
    assert_close(new_state[0][:, idle:], state[0][:, idle:], rtol=0, atol=0)
    assert_close(new_state[1][:, idle:], state[1][:, idle:], rtol=0, atol=0)


def test_the_given_state_is_not_written_to() -> None:
    config = make_config()
    x, state = make_inputs(config)
    before = copy.deepcopy(state)
    with torch.no_grad():
        make_stack(config)(x, BATCH_SIZES, state)
    assert_close(state, before, rtol=0, atol=0)


def test_two_windows_with_the_state_carried_equal_one() -> None:
    config = make_config()
    stack = make_stack(config)
    x, state = make_inputs(config)
    cut, steps = 3, sum(BATCH_SIZES[:3])
    with torch.no_grad():
        whole, last = stack(x, BATCH_SIZES, state)
        first, between = stack(x[:steps], BATCH_SIZES[:cut], state)
        second, end = stack(x[steps:], BATCH_SIZES[cut:], between)
    assert_close([torch.cat(pair) for pair in zip(first, second, strict=True)], whole)
    assert_close(end, last)


def test_dropout_is_on_the_input_that_the_residual_adds() -> None:
    config = make_config(dropout=0.5, num_hidden_layers=2)
    stack = make_stack(config).train()
    for parameter in stack.layers[1].parameters():
        parameter.data.zero_()
    x, state = make_inputs(config)
    (bottom, top), _ = stack(x, BATCH_SIZES, state)
    dropped = top == 0
    assert 0.2 < dropped.double().mean() < 0.8
    assert_close(top[~dropped], 2 * bottom[~dropped])


def run_by_reference(
    stack: ElmoLstmStack, x: Tensor, batch_sizes: Sequence[int], state: State, reverse: bool
) -> tuple[list[Tensor], State]:
    """Run step by step by `lstm_step`, which autograd follows."""
    outputs, states = [], []
    for number, layer in enumerate(stack.layers):
        h, c = state[0][number], state[1][number]
        steps, y = x.split(list(batch_sizes)), [x[:0]] * len(batch_sizes)
        for t in reversed(range(len(steps))) if reverse else range(len(steps)):
            alive = batch_sizes[t]
            sums = F.linear(steps[t], layer.input_weight, layer.bias)
            sums = sums + F.linear(h[:alive], layer.state_weight)
            y[t], cell = lstm_step(sums, c[:alive], layer.projection_weight, stack.config)
            h, c = torch.cat([y[t], h[alive:]]), torch.cat([cell, c[alive:]])
        residual = x if stack.config.use_residual and number > 0 else 0
        x = torch.cat(y) + residual
        outputs.append(x)
        states.append((h, c))
    return outputs, (torch.stack([h for h, _ in states]), torch.stack([c for _, c in states]))


def gradients(
    run: Callable[..., tuple[list[Tensor], State]],
    stack: ElmoLstmStack,
    reverse: bool,
    batch_sizes: Sequence[int] = BATCH_SIZES,
) -> list[Tensor]:
    """Gradients of a sum in which every output and state counts differently."""
    torch.manual_seed(9)
    x, state = make_inputs(stack.config, batch_sizes, batch=6)
    dtype = stack.layers[0].bias.dtype
    leaves = [value.to(dtype).requires_grad_() for value in (x, *state)]
    stack.zero_grad()
    state = (leaves[1], leaves[2])
    outputs, new_state = run(stack, leaves[0], batch_sizes, state, reverse=reverse)
    values = [*outputs, *new_state]
    sum((value * torch.randn_like(x[:1, :1].expand_as(value))).sum() for value in values).backward()
    return [value.grad for value in (*leaves, *stack.parameters())]


def run_stack(
    stack: ElmoLstmStack, x: Tensor, sizes: Sequence[int], state: State, reverse: bool
) -> tuple[list[Tensor], State]:
    return stack(x, sizes, state, reverse=reverse)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_gradients_are_those_that_autograd_finds(
    settings: dict[str, Any], reverse: bool, training: bool
) -> None:
    stack = make_stack(make_config(dropout=0.0, **settings)).train(training)
    expected = gradients(run_by_reference, stack, reverse)
    assert_close(gradients(run_stack, stack, reverse), expected)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
def test_gradients_pass_over_steps_without_rows(reverse: bool) -> None:
    stack = make_stack(make_config(cell_size=8))
    sizes = [*BATCH_SIZES, 0, 0]
    expected = gradients(run_by_reference, stack, reverse)
    assert_close(gradients(run_stack, stack, reverse, sizes), expected)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize(
    ("batch_sizes", "tolerance"), [(BATCH_SIZES, 0), (ONE_ROW, 1e-6)], ids=["batch", "one row"]
)
def test_outputs_do_not_depend_on_whether_gradients_are_wanted(
    batch_sizes: Sequence[int], tolerance: float
) -> None:
    stack = make_stack(make_config())
    x, state = make_inputs(stack.config, batch_sizes)
    outputs, _ = stack(x, batch_sizes, state)
    assert outputs[-1].requires_grad
    with torch.no_grad():
        expected, _ = stack(x, batch_sizes, state)
    assert_close(outputs, expected, rtol=0, atol=tolerance)


def test_gradients_under_autocast_are_near_those_in_float32() -> None:
    def run_in_bfloat16(*args: Any, reverse: bool) -> tuple[list[Tensor], State]:
        with torch.autocast("cpu", torch.bfloat16):
            return run_stack(*args, reverse=reverse)

    torch.manual_seed(0)
    stack = ElmoLstmStack(make_config(projection_size=32, cell_size=64, cell_clip=3)).eval()
    expected = gradients(run_stack, stack, reverse=True)
    actual = gradients(run_in_bfloat16, stack, reverse=True)
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == torch.float32
        assert F.cosine_similarity(one.flatten(), other.flatten(), dim=0) > 0.999


@settings(deadline=None, max_examples=50)
@given(
    sizes=st.fixed_dictionaries(
        {
            "projection_size": st.integers(1, 9),
            "num_hidden_layers": st.integers(1, 3),
            "cell_clip": st.none() | st.floats(0.05, 1),
            "projection_clip": st.none() | st.floats(0.05, 1),
            "use_cell_projection": st.booleans(),
            "use_residual": st.booleans(),
            "forget_bias": st.floats(-1, 2),
        }
    ),
    cell_size=st.integers(1, 20),
    batch_sizes=st.lists(st.integers(0, 6), min_size=1, max_size=8).filter(any),
    reverse=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_random_stacks_follow_the_equations(
    sizes: dict[str, Any], cell_size: int, batch_sizes: list[int], reverse: bool, seed: int
) -> None:
    cell_size = cell_size if sizes["use_cell_projection"] else sizes["projection_size"]
    stack = make_stack(make_config(**sizes, cell_size=cell_size, dropout=0.0), seed)
    batch_sizes = sorted(batch_sizes, reverse=True)
    x, state = make_inputs(stack.config, batch_sizes, batch=6, seed=seed)
    expected = reference(stack, x, batch_sizes, state, reverse)
    with torch.no_grad():
        assert_close(stack(x, batch_sizes, state, reverse=reverse), expected, check_dtype=False)
    stack = stack.double()
    actual_gradients = gradients(run_stack, stack, reverse, batch_sizes)
    assert_close(actual_gradients, gradients(run_by_reference, stack, reverse, batch_sizes))


def test_gradients_are_those_of_finite_differences() -> None:
    config = make_config(projection_size=3, cell_size=4, cell_clip=0.3, projection_clip=0.2)
    stack = make_stack(config).double()
    x, (h, c) = make_inputs(config, [3, 2, 1])
    leaves = [value.double().requires_grad_() for value in (x, h, c)]

    def run(x: Tensor, h: Tensor, c: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        outputs, state = stack(x, [3, 2, 1], (h, c), reverse=True)
        return *outputs, *state

    assert torch.autograd.gradcheck(run, (*leaves, *stack.parameters()))


def test_gradient_checkpointing_changes_no_gradient() -> None:
    config = make_config(dropout=0.0)
    x, state = make_inputs(config)
    gradients = []
    for checkpointing in (False, True):
        stack = make_stack(config).train()
        for layer in stack.layers:
            layer.gradient_checkpointing = checkpointing
            layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        outputs, _ = stack(x, BATCH_SIZES, state)
        outputs[-1].square().sum().backward()
        gradients.append([parameter.grad for parameter in stack.parameters()])
    assert_close(*gradients)


@pytest.mark.parametrize("mode", ["no gradients", "gradients"])
def test_a_compiled_stack_runs_as_it_is(mode: str) -> None:
    stack = make_stack(make_config())
    x, state = make_inputs(stack.config)
    with torch.set_grad_enabled(mode == "gradients"):
        expected = stack(x, BATCH_SIZES, state)
        compiled = torch.compile(stack, backend="eager")
        assert_close(compiled(x, BATCH_SIZES, state), expected, rtol=0, atol=0)


def run_forward(stack: ElmoLstmStack) -> Tensor:
    x, state = make_inputs(stack.config)
    outputs, _ = stack(x, BATCH_SIZES, state)
    return outputs[-1]


def test_hooks_of_stacks_and_layers_are_called() -> None:
    stack = make_stack(make_config())
    modules, called = [stack, *stack.layers], []
    expected = run_forward(stack)
    for module in modules:
        module.register_forward_hook(lambda module, *_: called.append(module))
    assert_close(run_forward(stack), expected, rtol=0, atol=0)
    assert called == [*stack.layers, stack]


def test_weights_that_accelerate_keeps_elsewhere_are_fetched() -> None:
    stack = make_stack(make_config())
    with torch.no_grad():
        expected = run_forward(stack)
        offloaded = cpu_offload(stack, torch.device("cpu"))
        assert all(parameter.is_meta for parameter in offloaded.parameters())
        assert_close(run_forward(offloaded), expected, rtol=0, atol=0)


def run(stack: ElmoLstmStack, batch_sizes: Sequence[int] = BATCH_SIZES) -> Tensor:
    """The top layer's outputs, outside of autograd, so that weights are packed and kept."""
    x, (h, c) = make_inputs(stack.config, batch_sizes)
    dtype = stack.layers[0].bias.dtype
    with torch.no_grad():
        outputs, _ = stack(x.to(dtype), batch_sizes, (h.to(dtype), c.to(dtype)))
    return outputs[-1]


PRECISIONS = {"float32": 1e-6, "bfloat16": 4e-3}


def make_wide_stack(precision: str) -> ElmoLstmStack:
    """Make a stack wide enough for packed weights."""
    config = make_config(projection_size=64, cell_size=128, cell_clip=3.0, projection_clip=3.0)
    stack = ElmoLstmStack(config).eval()
    return stack.bfloat16() if precision == "bfloat16" else stack


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_row_has_the_outputs_that_it_has_in_a_batch(precision: str) -> None:
    torch.manual_seed(0)
    stack = make_wide_stack(precision)
    dtype = stack.layers[0].bias.dtype
    x = torch.randn(12, 64, dtype=dtype)
    state = torch.zeros(2, 1, 64, dtype=dtype), torch.zeros(2, 1, 128, dtype=dtype)
    with torch.no_grad():
        alone, _ = stack(x, [1] * 12, state)
        twice, _ = stack(x.repeat_interleave(2, 0), [2] * 12, [z.repeat(1, 2, 1) for z in state])
    for one, both in zip(alone, twice, strict=True):
        assert one.float().abs().mean() > 20 * PRECISIONS[precision]
        assert_close(one, both[::2], rtol=0, atol=PRECISIONS[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("batch_sizes", [BATCH_SIZES, ONE_ROW], ids=["batch", "one row"])
def test_a_used_stack_can_be_copied_and_saved(
    tmp_path: Path, precision: str, batch_sizes: Sequence[int]
) -> None:
    stack = make_wide_stack(precision)
    before = run(stack, batch_sizes)
    torch.save(stack, tmp_path / "stack.pt")
    loaded = torch.load(tmp_path / "stack.pt", weights_only=False)
    for other in (copy.deepcopy(stack), loaded):
        assert_close(run(other, batch_sizes), before, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_outputs_in_half_precision_are_near_those_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    stack = ElmoLstmStack(make_config(projection_size=32, cell_size=64)).eval()
    x, (h, c) = make_inputs(stack.config)
    with torch.no_grad():
        expected, (last_h, last_c) = stack(x, BATCH_SIZES, (h, c))
        state = (h.to(dtype), c.to(dtype))
        actual, new_state = stack.to(dtype)(x.to(dtype), BATCH_SIZES, state)
    values = [*actual, *new_state]
    assert {value.dtype for value in values} == {dtype}
    for one, other in zip(values, [*expected, last_h, last_c], strict=True):
        assert F.cosine_similarity(one.float().flatten(), other.flatten(), dim=0) > 0.9995


def test_initial_values_are_tensorflows() -> None:
    layer = ElmoLstm(make_config(projection_size=32, cell_size=64))
    bound = (6 / (2 * 32 + 4 * 64)) ** 0.5
    for weight in (layer.input_weight, layer.state_weight):
        assert 0.95 * bound < weight.abs().max() <= bound
    assert 0.95 * (6 / 96) ** 0.5 < layer.projection_weight.abs().max() <= (6 / 96) ** 0.5
    assert not layer.bias.any()


def test_state_dict_has_the_common_layout() -> None:
    with torch.device("meta"):
        stack = ElmoLstmStack(make_config(num_hidden_layers=1))
        bare = ElmoLstmStack(make_config(use_cell_projection=False, projection_size=16))
    assert {name: tuple(value.shape) for name, value in stack.state_dict().items()} == {
        "layers.0.input_weight": (64, 8),
        "layers.0.state_weight": (64, 8),
        "layers.0.bias": (64,),
        "layers.0.projection_weight": (8, 16),
    }
    assert "layers.0.projection_weight" not in bare.state_dict()

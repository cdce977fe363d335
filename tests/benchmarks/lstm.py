"""How many words a second the LSTMs alone run, and train on, beside plain loops and bare products.

python tests/benchmarks/lstm.py infer
python tests/benchmarks/lstm.py train
"""

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional as F

from hf_elmo import ElmoConfig
from hf_elmo.lstm import ElmoLstm, ElmoLstmStack, lstm_step, run_stacks
from hf_elmo.lstm_forward import LayerRun, LayerWeights
from hf_elmo.lstm_products import multiply
from hf_elmo.lstm_threads import run_directions

# Words of 64 sentences of English prose (Shackleton, "South", 1919), boundary tokens not counted.
LENGTHS = """
31 37 8 24 17 5 44 22 12 42 27 47 31 40 14 44 8 9 22 15 32 5 15 19 8 13 8 23 29 29 28 53 21 19 34 29
18 21 25 17 19 19 21 15 12 15 15 21 35 4 13 19 15 12 26 38 18 17 19 12 30 43 34 23
"""

Batch = tuple[Tensor, list[int]]  # packed inputs (steps, projection_size), batch_sizes
Run = Callable[[Batch], object]
app = typer.Typer(add_completion=False, help=__doc__)

ProjectionSize = Annotated[int, typer.Option(help="P, the width of inputs and outputs.")]
CellSize = Annotated[int, typer.Option(help="D, the width of the cell.")]
Repeats = Annotated[int, typer.Option(help="Interleaved runs of each; the median counts.")]
Threads = Annotated[int, typer.Option(help="PyTorch's threads.")]
CpuTime = Annotated[
    bool, typer.Option(help="Measure CPU time, with --threads 1: for a machine busy otherwise.")
]


@app.command()
def infer(
    batch_sizes: Annotated[
        list[int], typer.Option("--batch-size", help="Sentences in a batch; may be repeated.")
    ] = [1, 8, 32, 64],  # noqa: B006 (typer copies it)
    sentences: Annotated[int, typer.Option(help="Sentences, 64 at most.")] = 64,
    projection_size: ProjectionSize = 512,
    cell_size: CellSize = 4096,
    repeats: Repeats = 5,
    threads: Threads = 2,
    cpu_time: CpuTime = False,
) -> None:
    """Run two layers of both directions over sentences sorted by length.

    The plain loop is that of the programs of 2018: a product of input and state with one kernel a
    step. The last columns are the time of the bare products, in packed weights and the same
    shapes, and its share in the whole.
    """
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    clock = time.process_time if cpu_time else time.perf_counter
    config = ElmoConfig(projection_size=projection_size, cell_size=cell_size)
    torch.manual_seed(0)
    stacks = [ElmoLstmStack(config).eval() for _ in range(2)]
    torch_lstm = nn.LSTM(
        projection_size,
        cell_size,
        config.num_hidden_layers,
        bidirectional=True,
        proj_size=projection_size,
    )
    lengths = [int(length) for length in LENGTHS.split()][:sentences]
    typer.echo(f"{'batch':>5} {'':<10}{'words/s':>9}{'ratio':>7}{'products/s':>12}{'share':>7}")
    for batch_size in batch_sizes:
        batches = make_batches(lengths, batch_size, projection_size)
        runs: dict[str, Run] = {
            "plain loop": functools.partial(run_plain_loop, stacks, make_kernels(stacks)),
            "nn.LSTM": functools.partial(run_torch_lstm, torch_lstm),
        }
        products: dict[str, Run] = {}
        for name, dtype in (
            ("float32", torch.float32),
            ("bfloat16", torch.bfloat16),
        ):
            ours = copy_stacks(stacks, dtype)
            runs[name] = functools.partial(run_ours, ours, dtype)
            products[name] = functools.partial(run_products, ours, dtype)
        seconds = measure(
            runs | {f"{k} products": run for k, run in products.items()}, batches, repeats, clock
        )
        for name in runs:
            line = f"{batch_size:>5} {name:<10}{sum(lengths) / seconds[name]:>9,.0f}"
            line += f"{seconds['plain loop'] / seconds[name]:>7.2f}"
            if name in products:
                bare = seconds[f"{name} products"]
                line += f"{sum(lengths) / bare:>12,.0f}{bare / seconds[name]:>7.0%}"
            typer.echo(line)


@app.command()
def train(
    batch_size: Annotated[int, typer.Option(help="Rows of the streams.")] = 64,
    window: Annotated[int, typer.Option(help="Time steps of a window.")] = 20,
    projection_size: ProjectionSize = 128,
    cell_size: CellSize = 1024,
    repeats: Repeats = 5,
    threads: Threads = 2,
    cpu_time: CpuTime = False,
) -> None:
    """Run both directions forth and back over windows of streams of text.

    The plain loop is eager PyTorch: `lstm_step` followed by autograd, a product of input and state
    with one kernel a step. bfloat16 is autocast over float32 weights.
    """
    torch.set_num_threads(threads)
    clock = time.process_time if cpu_time else time.perf_counter
    config = ElmoConfig(projection_size=projection_size, cell_size=cell_size, dropout=0.0)
    torch.manual_seed(0)
    stacks = [ElmoLstmStack(config) for _ in range(2)]
    batch = torch.randn(batch_size * window, projection_size), [batch_size] * window

    def backward(outputs: Sequence[Tensor]) -> None:
        torch.stack([output.float().square().mean() for output in outputs]).sum().backward()

    def step_plainly(batch: Batch) -> None:
        backward(run_plain_loop(stacks, make_kernels(stacks), batch))

    def step(batch: Batch) -> None:
        backward(run_ours(stacks, torch.float32, batch))

    def step_in_bfloat16(batch: Batch) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = run_ours(stacks, torch.float32, batch)
        backward(outputs)

    runs: dict[str, Run] = {
        "plain loop": step_plainly,
        "float32": step,
        "bfloat16": step_in_bfloat16,
    }
    seconds = measure(runs, [batch], repeats, clock)
    typer.echo(f"{'':<10}{'words/s':>9}{'ratio':>7}")
    for name in runs:
        ratio = seconds["plain loop"] / seconds[name]
        typer.echo(f"{name:<10}{batch_size * window / seconds[name]:>9,.0f}{ratio:>7.2f}")


def make_batches(lengths: list[int], batch_size: int, projection_size: int) -> list[Batch]:
    """Pack sentences, with two boundary tokens each, in batches of like lengths."""
    lengths = sorted((length + 2 for length in lengths), reverse=True)
    batches = []
    for start in range(0, len(lengths), batch_size):
        chosen = lengths[start : start + batch_size]
        sizes = [sum(length > t for length in chosen) for t in range(chosen[0])]
        batches.append((torch.randn(sum(sizes), projection_size), sizes))
    return batches


def copy_stacks(stacks: Sequence[ElmoLstmStack], dtype: torch.dtype) -> list[ElmoLstmStack]:
    """Copy stacks into a dtype."""
    copies = []
    for stack in stacks:
        copied = ElmoLstmStack(stack.config).eval().to(dtype)
        copied.load_state_dict(stack.state_dict())
        copies.append(copied)
    return copies


def make_kernels(stacks: Sequence[ElmoLstmStack]) -> dict[ElmoLstm, Tensor]:
    """Join the weights of inputs and state, as the programs of 2018 keep them."""
    layers = [layer for stack in stacks for layer in stack.layers]
    return {layer: torch.cat([layer.input_weight, layer.state_weight], dim=1) for layer in layers}


def run_plain_loop(
    stacks: Sequence[ElmoLstmStack], kernels: dict[ElmoLstm, Tensor], batch: Batch
) -> list[Tensor]:
    """Run both directions step by step; the second from the end."""
    inputs, sizes = batch
    outputs = []
    for stack, reverse in zip(stacks, (False, True), strict=True):
        x = inputs
        for number, layer in enumerate(stack.layers):
            h = inputs.new_zeros(sizes[0], stack.config.projection_size)
            c = inputs.new_zeros(sizes[0], stack.config.cell_size)
            steps = x.split(sizes)
            y = list(steps)
            for t in reversed(range(len(sizes))) if reverse else range(len(sizes)):
                joined = torch.cat([steps[t], h[: sizes[t]]], dim=1)
                gates = F.linear(joined, kernels[layer], layer.bias)
                y[t], cell = lstm_step(gates, c[: sizes[t]], layer.projection_weight, stack.config)
                h, c = torch.cat([y[t], h[sizes[t] :]]), torch.cat([cell, c[sizes[t] :]])
            x = torch.cat(y) + x if number > 0 else torch.cat(y)
        outputs.append(x)
    return outputs


def run_torch_lstm(lstm: nn.LSTM, batch: Batch) -> None:
    """Run PyTorch's own LSTM, which cannot clip."""
    inputs, sizes = batch
    lstm(nn.utils.rnn.PackedSequence(inputs, torch.tensor(sizes)))


def run_ours(stacks: Sequence[ElmoLstmStack], dtype: torch.dtype, batch: Batch) -> list[Tensor]:
    """Run both directions by `run_stacks`."""
    inputs, sizes, config = batch[0].to(dtype), batch[1], stacks[0].config
    h = inputs.new_zeros(config.num_hidden_layers, sizes[0], config.projection_size)
    c = inputs.new_zeros(config.num_hidden_layers, sizes[0], config.cell_size)
    results = run_stacks(stacks, [inputs] * 2, sizes, [(h, c)] * 2, [False, True])
    return [outputs[-1] for outputs, _ in results]


def run_products(stacks: Sequence[ElmoLstmStack], dtype: torch.dtype, batch: Batch) -> None:
    """Compute the products of `run_ours`, of the same shapes and in the same threads, alone."""
    inputs, sizes, config = batch[0].to(dtype), batch[1], stacks[0].config
    h = inputs.new_zeros(sizes[0], config.projection_size)
    c = inputs.new_zeros(sizes[0], config.cell_size)

    runs = [LayerRun(config, sizes, reverse, dtype) for reverse in (False, True)]

    def run(index: int) -> None:
        layer_run = runs[index]
        for layer in stacks[index].layers:
            weights: LayerWeights = layer.pack(dtype)
            for times in layer_run.chunks():
                rows = [sizes[t] for t in times]
                sums = multiply(inputs[: sum(rows)], weights.input_weight, weights.bias)
                for step_sums in sums.split(rows):
                    multiply(h[: len(step_sums)], weights.state_weight, step_sums)
                    multiply(c[: len(step_sums)], weights.projection_weight)

    run_directions(run, runs, "cpu")


def measure(
    runs: dict[str, Run], batches: Sequence[Batch], repeats: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Time each run over all batches, in turns after a first turn that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            start = clock()
            for batch in batches:
                run(batch)
            if repeat > 0:
                seconds[name].append(clock() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


if __name__ == "__main__":
    app()

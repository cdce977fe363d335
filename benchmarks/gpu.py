"""Check and time the biLM's LSTMs on a GPU, beside cuDNN's LSTM without clips.

python benchmarks/gpu.py gpu.json

What is in the file of results is not measured again: an interrupted run continues.
"""

import copy
import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.benchmark import Timer

from hf_elmo import ElmoConfig
from hf_elmo.lstm import ElmoLstmStack

PRECISIONS = ("float32", "TF32", "bfloat16")
ENGINES = ("ours", "cuDNN without clips")
BATCH_SIZES = [1, 8, 32, 64, 128, 256, 512]
LAYERS = 2
STEPS = 25  # words of a sentence

Results = dict[str, Any]


class Sizes(NamedTuple):
    """Widths of a direction and of its cells."""

    projection_size: int
    cell_size: int


class Contender:
    """Two directions of LSTMs in one precision, on a device."""

    def __init__(self, engine: str, precision: str, sizes: Sizes, device: str) -> None:
        self.engine, self.sizes = engine, sizes
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.device = device
        lstms = copy.deepcopy(draw_lstms(sizes)).to(device, self.dtype)
        self.stacks, self.cudnn = list(lstms[:2].eval()), lstms[2]  # cuDNN learns in training alone
        self.cudnn.flatten_parameters()

    def make_input(self, batch_size: int) -> Tensor:
        """Draw packed word vectors of sentences of equal length."""
        generator = torch.Generator().manual_seed(batch_size)
        shape = STEPS * batch_size, self.sizes.projection_size
        return torch.randn(shape, generator=generator).to(self.device, self.dtype)

    def run(self, packed: Tensor) -> list[Tensor]:
        """Run both directions; return the outputs of the last layer."""
        batch_size = len(packed) // STEPS
        alive = [batch_size] * STEPS
        if self.engine.startswith("cuDNN"):
            return [self.cudnn(PackedSequence(packed, torch.tensor(alive)))[0].data]
        h = packed.new_zeros(LAYERS, batch_size, self.sizes.projection_size)
        c = packed.new_zeros(LAYERS, batch_size, self.sizes.cell_size)
        outputs = [
            stack(packed, alive, (h, c), reverse=reverse)
            for stack, reverse in zip(self.stacks, (False, True), strict=True)
        ]
        return [layers[-1] for layers, _ in outputs]

    def infer(self, packed: Tensor) -> None:
        """Run without gradients."""
        with torch.inference_mode():
            self.run(packed)

    def train(self, packed: Tensor) -> None:
        """Run forth and back."""
        torch.stack(
            [output.float().square().mean() for output in self.run(packed)]
        ).sum().backward()


@contextmanager
def use(precision: str) -> Iterator[None]:
    """Allow TF32, or not, for a while."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "TF32"
    try:
        yield
    finally:
        matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@functools.cache
def draw_lstms(sizes: Sizes) -> nn.ModuleList:
    """Draw the weights of both directions, and of cuDNN's LSTM, once."""
    torch.manual_seed(0)
    width, cell_size = sizes
    cudnn = nn.LSTM(width, cell_size, LAYERS, bidirectional=True, proj_size=width)
    config = ElmoConfig(
        projection_size=width, cell_size=cell_size, num_hidden_layers=LAYERS, dropout=0.0
    )
    return nn.ModuleList([ElmoLstmStack(config), ElmoLstmStack(config), cudnn])


@functools.cache
def compute_exact(sizes: Sizes, batch_size: int) -> Tensor:
    """Compute the outputs in float64 on the CPU."""
    exact = Contender("ours", "float32", sizes, "cpu")
    exact.stacks = [stack.double() for stack in exact.stacks]
    with torch.inference_mode():
        return torch.stack(exact.run(exact.make_input(batch_size).double()))


def measure_error(contender: Contender, batch_size: int) -> float:
    """Measure the greatest difference to float64 on the CPU, in share of the greatest value."""
    with torch.inference_mode():
        actual = torch.stack(contender.run(contender.make_input(batch_size))).cpu().double()
    expected = compute_exact(contender.sizes, batch_size)
    return float((actual - expected).abs().max() / expected.abs().max())


def measure_speed(run: Callable[[Tensor], None], packed: Tensor, seconds: float) -> float:
    """Measure words a second; the timer waits for the GPU."""
    timer = Timer("run(packed)", globals={"run": run, "packed": packed}, num_threads=2)
    return len(packed) / timer.blocked_autorange(min_run_time=seconds).median


def find_missing(done: Results, batch_sizes: list[int]) -> Iterator[tuple[str, str, str, int]]:
    """List what has not been measured: quantity, engine, precision, batch size."""
    quantities = ("error", "inference", "training")
    for engine, precision, quantity, size in product(ENGINES, PRECISIONS, quantities, batch_sizes):
        key = quantity, engine, precision, size
        if not (quantity == "error" and engine.startswith("cuDNN")) and name(*key) not in done:
            yield key


def name(quantity: str, engine: str, precision: str, batch_size: int) -> str:
    """Name a measurement in the file of results."""
    return f"{quantity}, {engine}, {precision}, {batch_size}"


def print_tables(done: Results, batch_sizes: list[int]) -> None:
    """Print a table of each quantity in Markdown."""
    for quantity in ("error", "inference", "training"):
        typer.echo(f"\n| {quantity} | {' | '.join(map(str, batch_sizes))} |")
        typer.echo("|---" * (len(batch_sizes) + 1) + "|")
        for engine, precision in product(ENGINES, PRECISIONS):
            values = [done.get(name(quantity, engine, precision, size)) for size in batch_sizes]
            form = "{:.1e}" if quantity == "error" else "{:,.0f}"
            cells = ["" if value is None else form.format(value) for value in values]
            if any(cells):
                typer.echo(f"| {engine}, {precision} | {' | '.join(cells)} |")


def main(
    results: Annotated[Path, typer.Argument(help="File of results, in JSON.")],
    device: Annotated[str, typer.Option(help="cpu tries the program.")] = "cuda",
    batch_size: Annotated[list[int], typer.Option(help="Sentences of 25 words.")] = BATCH_SIZES,
    projection_size: Annotated[int, typer.Option(help="Width of a direction.")] = 512,
    cell_size: Annotated[int, typer.Option(help="Width of the cells.")] = 4096,
    seconds: Annotated[float, typer.Option(help="Time for each speed.")] = 1.0,
) -> None:
    """Measure what is missing in the file of results, and print it as tables.

    `error`: greatest difference to float64 on the CPU, in share of the greatest value. `inference`
    and `training` (forward and backward): words a second of two layers in both directions.
    """
    if device == "cuda" and not torch.cuda.is_available():
        typer.echo("No GPU is available to PyTorch. --device cpu tries the program.")
        return
    done: Results = json.loads(results.read_text("utf-8")) if results.exists() else {}
    done["device"] = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    done["torch"] = torch.__version__
    sizes = Sizes(projection_size, cell_size)
    make_contender = functools.lru_cache(maxsize=1)(Contender)
    for key in find_missing(done, batch_size):
        quantity, engine, precision, size = key
        with use(precision):
            contender = make_contender(engine, precision, sizes, device)
            packed = contender.make_input(size)
            run = contender.infer if quantity == "inference" else contender.train
            if quantity == "error":
                done[name(*key)] = measure_error(contender, size)
            else:
                done[name(*key)] = measure_speed(run, packed, seconds)
        part = results.with_name(f"{results.name}.part")
        part.write_text(json.dumps(done, indent=1), "utf-8")
        part.replace(results)
        typer.echo(f"{name(*key)}: {done[name(*key)]:.3g}")
    typer.echo(
        f"\n{done['device']}, PyTorch {done['torch']}, LSTMs {projection_size} / {cell_size}"
    )
    print_tables(done, batch_size)


if __name__ == "__main__":
    typer.run(main)

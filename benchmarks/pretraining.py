"""How many words a second pretraining takes, beside a plain eager loop and the products alone."""

import itertools
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Annotated, Literal
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoTokenizer
from hf_elmo.language_model import windowed_model as windows_module
from hf_elmo.language_model.losses import draw_log_uniform, log_expected_count
from hf_elmo.language_model.vocabulary import TargetVocabulary
from hf_elmo.language_model.window_streams import SentenceStream, WindowCollator, WindowStream
from hf_elmo.language_model.windowed_model import WindowedLanguageModel
from hf_elmo.lstm import ElmoLstmStack, lstm_step
from hf_elmo.pretraining.models import PRESETS
from hf_elmo.text.text_reader import SentenceReader

VOCABULARY_SIZE = 18_879
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WARM_UP = 2  # training steps before those that count


def main(
    preset: Annotated[str, typer.Option(help="mini, small, medium or original.")] = "mini",
    batch_size: Annotated[int, typer.Option(help="Rows.")] = 64,
    window: Annotated[int, typer.Option(help="Time steps.")] = 20,
    negatives: Annotated[int, typer.Option(help="Of the sampled softmax.")] = 1024,
    repeats: Annotated[int, typer.Option(help="Steps of each, in turn; the median counts.")] = 15,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    clock: Annotated[
        Literal["wall", "cpu"],
        typer.Option(help="cpu = of all threads together: for a machine that others use too."),
    ] = "wall",
) -> None:
    """Measure whole training steps, optimiser included, in words of the text (one direction).

    The plain loop is PyTorch without our kernels: a product and a cell a time step, gradients by
    autograd, the sampled softmax by cross_entropy. "products" are the LSTMs' matrix products alone.
    """
    torch.set_num_threads(threads)
    words = [f"w{number:x}" for number in range(4 * VOCABULARY_SIZE)]
    vocabulary = TargetVocabulary(["<S>", "</S>", "<UNK>", *words[: VOCABULARY_SIZE - 3]])
    torch.manual_seed(0)
    model = ElmoForPreTraining(ElmoConfig(**PRESETS[preset], vocab_size=len(vocabulary)))
    streams = (SentenceStream(make_text(words, seed)) for seed in (0, 1))
    stream = WindowStream(*streams, vocabulary, num_rows=batch_size, window=window)
    windows = map(WindowCollator(ElmoTokenizer()), stream)
    batches = list(itertools.islice(windows, WARM_UP + repeats))
    trainers = {}
    for name, dtype in DTYPES.items():
        trainers[name] = Steps(model, negatives, dtype)
        trainers[name].train(batches[0])
        if dtype == torch.float32:  # the first, so that it is its own
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    plain = Steps(model, negatives, torch.float32)

    def train_plainly(batch: dict[str, Tensor]) -> None:
        with (
            patch.object(ElmoLstmStack, "forward", run_plainly),
            patch.object(windows_module, "sampled_softmax_losses", sample_plainly),
        ):
            plain.train(batch)

    contenders: dict[str, Callable[[dict[str, Tensor]], object]] = {"plain loop": train_plainly}
    for name, dtype in DTYPES.items():
        products = make_products(model.config, batch_size, window, dtype)
        contenders |= {name: trainers[name].train, f"products, {name}": products}
    seconds = measure(
        contenders, batches, time.perf_counter if clock == "wall" else time.process_time
    )
    rates = {name: batch_size * window / taken for name, taken in seconds.items()}
    typer.echo(f"{'':22}{'words/s':>10}{'x plain':>10}{'of products':>14}")
    for name, rate in rates.items():
        share = rates.get(f"products, {name}")
        percent = "" if share is None else f"{rate / share:.0%}"
        typer.echo(f"{name:22}{rate:>10,.0f}{rate / rates['plain loop']:>10.2f}{percent:>14}")
    typer.echo(f"peak memory in float32 {peak:.2f} GiB, {model.num_parameters():,} weights")


def make_text(words: list[str], seed: int) -> SentenceReader:
    """Make endless sentences of 20 words, frequencies by Zipf's law."""

    def read(_: Random | None) -> Iterator[list[str]]:
        generator = np.random.default_rng(seed)
        ranks = (len(words) ** generator.random((10_000, 20))).astype(int)
        return ([words[rank] for rank in row] for row in ranks.tolist())

    return read


class Steps:
    """Training steps of a model that others train too, with an own state and optimiser."""

    def __init__(self, model: ElmoForPreTraining, num_negatives: int, dtype: torch.dtype) -> None:
        self.runner = WindowedLanguageModel(model, num_negatives=num_negatives).train()
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        self.dtype = dtype

    def train(self, batch: dict[str, Tensor]) -> None:
        """Train a step on a batch."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            losses = [loss.mean() for loss in self.runner(**batch) if loss is not None]
        torch.stack(losses).mean().backward()
        torch.nn.utils.clip_grad_norm_(self.runner.parameters(), 10.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def measure(
    contenders: dict[str, Callable[[dict[str, Tensor]], object]],
    batches: list[dict[str, Tensor]],
    now: Callable[[], float],
) -> dict[str, float]:
    """Run all contenders on each batch, in turn; give the median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for batch in batches:
        for name, run in contenders.items():
            start = now()
            run(batch)
            seconds[name].append(now() - start)
    return {name: statistics.median(times[WARM_UP:]) for name, times in seconds.items()}


def run_plainly(stack, x, batch_sizes, state, *, reverse):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Run full windows as `ElmoLstmStack.forward` does, a time step after the other."""
    outputs, new_states = [], []
    for number, layer in enumerate(stack.layers):
        x = F.dropout(x, stack.config.dropout, stack.training)
        gates = F.linear(x, layer.input_weight, layer.bias).split(batch_sizes)
        h, c = state[0][number], state[1][number]
        steps = []
        for sums in gates:
            sums = sums + F.linear(h, layer.state_weight)  # noqa: PLW2901
            h, c = lstm_step(sums, c, layer.projection_weight, stack.config)
            steps.append(h)
        x = torch.cat(steps) + (x if number else 0)
        outputs.append(x)
        new_states.append((h, c))
    hs, cs = zip(*new_states, strict=True)
    return outputs, (torch.stack(hs), torch.stack(cs))


def sample_plainly(
    hidden: Tensor,
    targets: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    num_negatives: int,
    generator: torch.Generator,
) -> Tensor:
    """Compute the sampled softmax with all its logits at once."""
    negatives, draws = draw_log_uniform(num_negatives, len(weight), generator)
    true = (hidden * weight[targets]).sum(1) + bias[targets]
    true = true - log_expected_count(targets, draws, len(weight))
    sampled = F.linear(hidden, weight[negatives], bias[negatives])
    sampled = sampled - log_expected_count(negatives, draws, len(weight))
    sampled = sampled.masked_fill(targets[:, None] == negatives, -1e30)
    logits = torch.cat([true[:, None], sampled], dim=1)
    return F.cross_entropy(logits, torch.zeros_like(targets), reduction="none")


def make_products(
    config: ElmoConfig, batch: int, window: int, dtype: torch.dtype
) -> Callable[[object], None]:
    """Make a function that computes the LSTMs' products of a step, forth and back."""
    size, cells = config.projection_size, config.cell_size
    x, gates = torch.randn(batch * window, size).to(dtype), torch.randn(4 * cells, size).to(dtype)
    projection = torch.randn(size, cells).to(dtype)
    wide, narrow = torch.randn(batch, 4 * cells).to(dtype), torch.randn(batch, size).to(dtype)
    cell = torch.randn(batch, cells).to(dtype)
    all_wide = torch.randn(batch * window, 4 * cells).to(dtype)
    all_cell = torch.randn(batch * window, cells).to(dtype)

    def multiply(_: object) -> None:
        for _layer in range(config.num_hidden_layers * (2 if config.bidirectional else 1)):
            x @ gates.T, all_wide @ gates, all_wide.T @ x, all_wide.T @ x, x.T @ all_cell
            for _time in range(window):
                narrow @ gates.T, wide @ gates, cell @ projection.T, narrow @ projection

    return multiply


if __name__ == "__main__":
    typer.run(main)

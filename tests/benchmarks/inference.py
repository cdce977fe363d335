"""How fast and how big embedding is, beside a plain loop, `nn.LSTM` and the bare matrix products.

python tests/benchmarks/inference.py --sizes original --batch-sizes 8,32
"""

import copy
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import spacy
import torch
import typer
from spacy.tokens import Doc
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence

from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer
from hf_elmo.corpus.embedding import embed_layers
from hf_elmo.lstm_loops import start_threads
from hf_elmo.lstm_products import (
    Int8Weight,
    Quantization,
    multiply,
    pack_for_row,
    pack_int8_weight,
    pack_weight,
)

TEXT = Path(__file__).parents[1] / "data" / "lighthouse.txt"
SIZES: dict[str, dict[str, Any]] = {
    "small": {"projection_size": 128, "cell_size": 1024, "num_highway_layers": 1},
    "medium": {"projection_size": 256, "cell_size": 2048, "num_highway_layers": 1},
    "original": {},
}
PRECISIONS: dict[str, tuple[torch.dtype, Quantization]] = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "int8": (torch.float32, "int8"),
}
TOLERANCES = {"float32": 2e-4, "bfloat16": 0.2, "int8": 0.2}  # of the plain loop against ours
BATCH_ONE_SHARE = 4  # of the sentences, every fourth runs alone: the plain loop takes a minute else
PROBE = """
import json, resource, sys, time
import psutil, torch
from transformers import PreTrainedModel  # `import transformers` alone puts its 130 MB off
imported = psutil.Process().memory_info().rss
from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.corpus.embedding import embed_layers
folder, dtype, quantization, text, num_sentences = sys.argv[1:]
sentences = [line.split() for line in open(text, encoding="utf-8")][: int(num_sentences)]
sentences.sort(key=len)
start = time.perf_counter()
model = ElmoModel.from_pretrained(folder, dtype=getattr(torch, dtype))
model.quantize(quantization or None)
tokenizer = ElmoTokenizer.from_pretrained(folder)
loaded = time.perf_counter()
list(embed_layers(sentences[:1], model, tokenizer))
first = time.perf_counter()
for begin in range(0, len(sentences), 32):
    list(embed_layers(sentences[begin : begin + 32], model, tokenizer))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
weights = sum(parameter.nbytes for parameter in model.parameters())
print(json.dumps([loaded - start, first - start, weights, (peak - imported) / weights]))
"""

Sentences = list[list[str]]


class PlainBilm:
    """The biLM as the programs of 2018 ran it: every word of the padded batch, step by step."""

    def __init__(self, model: ElmoModel) -> None:
        self.config, self.encoder = model.config, model.token_encoder
        self.kernels = [
            [torch.cat([layer.input_weight, layer.state_weight], dim=1) for layer in stack.layers]
            for stack in (model.forward_lstm, model.backward_lstm)
        ]
        self.stacks = [model.forward_lstm.layers, model.backward_lstm.layers]

    def __call__(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Run framed sentences, longest first, ids `(batch, tokens, characters)`."""
        x = self.encode(ids.flatten(0, 1)).view(*ids.shape[:2], -1)
        alive = [sum(length > t for length in lengths) for t in range(lengths[0])]
        layers = [[x], [x]]
        for stack, kernels, outputs, is_backward in zip(
            self.stacks, self.kernels, layers, (False, True), strict=True
        ):
            for number, (layer, kernel) in enumerate(zip(stack, kernels, strict=True)):
                output = self.run(outputs[-1], alive, layer, kernel, is_backward)
                outputs.append(output + outputs[-1] if number else output)
        return [torch.cat(pair, dim=-1) for pair in zip(*layers, strict=True)]

    def encode(self, ids: Tensor) -> Tensor:
        encoder = self.encoder
        x = encoder.char_embedding(ids).transpose(1, 2)
        x = torch.cat([F.relu(layer(x).amax(dim=-1)) for layer in encoder.char_convolutions], -1)
        for highway in encoder.highways:
            x = highway(x)
        return encoder.projection(x)

    def run(
        self, x: Tensor, alive: list[int], layer: Any, kernel: Tensor, is_backward: bool
    ) -> Tensor:
        config = self.config
        h = x.new_zeros(len(x), config.projection_size)
        c = x.new_zeros(len(x), config.cell_size)
        outputs = torch.zeros_like(x)
        times = range(len(alive))
        for t in reversed(times) if is_backward else times:
            n = alive[t]
            z = F.linear(torch.cat([x[:n, t], h[:n]], dim=1), kernel, layer.bias)
            i, f, o, j = z.chunk(4, dim=1)
            cell = torch.sigmoid(f + 1) * c[:n] + torch.sigmoid(i) * torch.tanh(j)
            cell = cell.clamp(-config.cell_clip, config.cell_clip)
            output = F.linear(torch.sigmoid(o) * torch.tanh(cell), layer.projection_weight)
            output = output.clamp(-config.projection_clip, config.projection_clip)
            h, c = torch.cat([output, h[n:]]), torch.cat([cell, c[n:]])
            outputs[:n, t] = output
        return outputs


class Batch:
    """Sentences of like length, longest first, laid out as each contender wants them."""

    def __init__(self, sentences: Sentences, model: ElmoModel, tokenizer: ElmoTokenizer) -> None:
        self.sentences = sentences
        framed = [["<S>", *words, "</S>"] for words in sentences]
        self.lengths = [len(words) for words in framed]
        self.sizes = [sum(length > t for length in self.lengths) for t in range(self.lengths[0])]
        encoding = tokenizer(framed, is_split_into_words=True, padding=True, return_tensors="pt")
        self.ids: Tensor = encoding["input_ids"].to(model.device)
        with torch.inference_mode():
            rows = zip(self.ids, self.lengths, strict=True)
            self.packed = pack_sequence([model.encode_words(ids[:n], None) for ids, n in rows])


def make_native(model: ElmoModel) -> nn.ModuleList:
    """Make the nearest thing in PyTorch: no clips, no residuals, other weights."""
    config = model.config
    return nn.ModuleList(
        nn.LSTM(
            config.projection_size,
            config.cell_size,
            config.num_hidden_layers,
            proj_size=config.projection_size,
            device=model.device,
            dtype=model.dtype,
        )
        for _ in range(2)
    ).eval()


def pack(weight: Tensor, rows: int, quantization: Quantization) -> Callable[[Tensor], Tensor]:
    """Lay a weight out for products with some number of rows, in the fastest way known."""
    if quantization is not None:
        packed: Tensor | Int8Weight = pack_int8_weight(weight)
    elif weight.device.type == "cpu" and rows > 1:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    else:
        packed = pack_weight(weight)
    if rows == 1:
        return functools.partial(multiply, weight=pack_for_row(weight.detach(), packed))
    return functools.partial(multiply, weight=packed)


class Products:
    """The matrix products of the LSTMs alone, in their shapes and nothing else: the roofline.

    The weights are laid out for them. Both ways to use two cores are tried, the faster counts: all
    threads on each product, or a direction on each thread. Those in 8 bits include the rounding of
    their inputs.
    """

    def __init__(self, model: ElmoModel, batches: list[Batch]) -> None:
        rows, quantization = batches[0].sizes[0], model.quantization
        self.batches = batches
        self.directions = [
            [
                (
                    pack(layer.input_weight, batches[0].packed.data.shape[0], quantization),
                    pack(layer.state_weight, rows, quantization),
                    pack(layer.projection_weight, rows, quantization),
                )
                for layer in stack.layers
            ]
            for stack in (model.forward_lstm, model.backward_lstm)
        ]
        self.hidden = torch.ones(rows, model.config.cell_size, dtype=model.dtype).to(model.device)

    def run(self, direction: int) -> None:
        with torch.inference_mode():
            for batch in self.batches:
                x = batch.packed.data
                for of_input, of_state, of_projection in self.directions[direction]:
                    of_input(x)
                    for size in batch.sizes:
                        of_state(x[:size])
                        of_projection(self.hidden[:size])

    def run_in_turn(self) -> None:
        for direction in range(2):
            self.run(direction)

    def run_at_once(self) -> None:
        pool = start_threads(os.getpid(), 2, torch.get_num_threads())  # those of the recurrence
        list(pool.map(self.run, range(2)))


def measure(contenders: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Run the contenders in turn, several times; give the median seconds of each."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


HEADER = (
    "size",
    "dtype",
    "batch",
    "plain loop",
    "first call",
    "new words",
    "steady",
    "steady / plain",
    "LSTM alone",
    "nn.LSTM alone",
    "products alone",
    "products' share",
)


def measure_row(
    model: ElmoModel,
    tokenizer: ElmoTokenizer,
    sentences: Sentences,
    dtype: str,
    batch_size: int,
    repeats: int,
) -> list[str]:
    """Measure words a second of all contenders at a batch size."""
    sentences = sorted(sentences, key=len, reverse=True)
    sentences = sentences[:: BATCH_ONE_SHARE if batch_size == 1 else 1]
    starts = range(0, len(sentences), batch_size)
    batches = [Batch(sentences[start : start + batch_size], model, tokenizer) for start in starts]
    plain = PlainBilm(copy.deepcopy(model).float())
    native, products = make_native(model), Products(model, batches)

    def embed(model: ElmoModel = model) -> list[Tensor]:
        return [
            layers
            for batch in batches
            for layers in embed_layers(batch.sentences, model, tokenizer, max_batch_tokens=10**6)
        ]

    def embed_new() -> None:
        model.word_cache.clear()
        embed()

    @torch.inference_mode()
    def run_plain() -> list[Tensor]:
        outputs = [plain(batch.ids, batch.lengths) for batch in batches]
        return [layer for layers in outputs for layer in layers]

    @torch.inference_mode()
    def run_lstm() -> None:
        for batch in batches:
            model.run_bilm(batch.packed.data, batch.sizes)

    @torch.inference_mode()
    def run_native() -> None:
        for batch in batches:
            for direction in native:
                direction(batch.packed)

    first = measure({"first": functools.partial(embed, copy.deepcopy(model))}, 1)
    check(embed(), run_plain(), batches, dtype)
    contenders = {
        "plain": run_plain,
        "new": embed_new,
        "steady": embed,
        "lstm": run_lstm,
        "native": run_native,
        "in turn": products.run_in_turn,
        "at once": products.run_at_once,
    }
    seconds = {**first, **measure(contenders, repeats)}
    num_words = sum(map(len, sentences))
    bare = min(seconds["in turn"], seconds["at once"])
    return [
        *(f"{num_words / seconds[name]:,.0f}" for name in ("plain", "first", "new", "steady")),
        f"{seconds['plain'] / seconds['steady']:.1f}",
        *(f"{num_words / seconds[name]:,.0f}" for name in ("lstm", "native")),
        f"{num_words / bare:,.0f}",
        f"{bare / seconds['lstm']:.0%}",
    ]


def check(ours: list[Tensor], plain: list[Tensor], batches: list[Batch], dtype: str) -> None:
    """Check that the plain loop computes the same."""
    layers = iter(plain)
    results = iter(ours)
    for batch in batches:
        stacked = torch.stack([next(layers) for _ in range(len(plain) // len(batches))])
        for row, words in enumerate(batch.sentences):
            expected = stacked[:, row, 1 : len(words) + 1]
            torch.testing.assert_close(
                next(results).float(), expected.float(), rtol=0, atol=TOLERANCES[dtype]
            )


def measure_process(folder: str, dtype: str, text: Path, num_sentences: int) -> list[str]:
    """Load the model in a process of its own and embed at batch 32: seconds and bytes."""
    loaded, quantization = PRECISIONS[dtype]
    arguments = [str(loaded).removeprefix("torch."), quantization or "", text, num_sentences]
    command = [sys.executable, "-c", PROBE, folder, *map(str, arguments)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    load, first, weights, ratio = json.loads(output)
    return [f"{load:.2f}", f"{first:.2f}", f"{weights / 2**20:.0f}", f"{ratio:.2f}"]


def measure_pipe(folder: str, sentences: Sentences, repeats: int) -> tuple[float, float]:
    """Measure words a second of `nlp.pipe`, in docs of a sentence, and of the tokenizer."""
    nlp = spacy.blank("en")
    nlp.add_pipe(
        "elmo", config={"model": {"@architectures": "spacy_elmo.ElmoModel.v1", "name": folder}}
    )
    tokenizer = ElmoTokenizer.from_pretrained(folder)

    def pipe() -> None:
        for _ in nlp.pipe([Doc(nlp.vocab, words=words) for words in sentences]):
            pass

    pipe()
    seconds = measure(
        {"pipe": pipe, "tokenizer": lambda: tokenizer(sentences, is_split_into_words=True)}, repeats
    )
    num_words = sum(map(len, sentences))
    return num_words / seconds["pipe"], num_words / seconds["tokenizer"]


def print_table(header: tuple[str, ...], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    for row in (header, ["---"] * len(header), *rows):
        typer.echo(f"| {' | '.join(row)} |")
    typer.echo()


def main(
    text: Annotated[
        Path, typer.Argument(help="A sentence a line, words between white space.")
    ] = TEXT,
    sizes: Annotated[str, typer.Option(help=f"Of {', '.join(SIZES)}.")] = "original",
    dtypes: Annotated[str, typer.Option(help=f"Of {', '.join(TOLERANCES)}.")] = "float32,bfloat16",
    batch_sizes: Annotated[str, typer.Option(help="Sentences in a batch.")] = "1,8,32,64",
    sentences: Annotated[int, typer.Option(help="Sentences of the text.")] = 64,
    repeats: Annotated[int, typer.Option(help="Interleaved runs; medians count.")] = 5,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Print tables of words a second, memory and load time, of random weights in three sizes.

    The plain loop is what the programs of 2018 did, in float32. First call: nothing cached, weights
    not laid out yet. New words: no word cached. Steady: all words cached. The rest runs the LSTMs
    alone, from word vectors: ours, PyTorch's (no clips, no residuals), and nothing but their matrix
    products; the share is the time of these in ours. At batch 1 every fourth sentence is run.
    """
    words = [line.split() for line in text.read_text(encoding="utf-8").splitlines()][:sentences]
    tokenizer = ElmoTokenizer()
    speeds, processes, pipes = [], [], []
    for size in sizes.split(","):
        torch.manual_seed(0)
        model = ElmoModel(ElmoConfig(**SIZES[size])).eval()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            for dtype in dtypes.split(","):
                processes.append([size, dtype, *measure_process(folder, dtype, text, sentences)])
            pipes.append(
                [size, *(f"{speed:,.0f}" for speed in measure_pipe(folder, words, repeats))]
            )
        for dtype in dtypes.split(","):
            loaded, quantization = PRECISIONS[dtype]
            model.to(device, loaded).quantize(quantization)
            for batch_size in map(int, batch_sizes.split(",")):
                row = measure_row(model, tokenizer, words, dtype, batch_size, repeats)
                speeds.append([size, dtype, str(batch_size), *row])
    place = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} cores"
    typer.echo(
        f"Words a second, {len(words)} sentences of {sum(map(len, words))} words, {place}, "
        f"PyTorch {torch.__version__}, {date.today()}; `{' '.join(sys.argv)}`\n"
    )
    print_table(HEADER, speeds)
    print_table(
        ("size", "dtype", "load, s", "first vector, s", "weights, MB", "peak / weights"), processes
    )
    print_table(("size", "nlp.pipe, words/s", "tokenizer, words/s"), pipes)


if __name__ == "__main__":
    typer.run(main)

"""How fast and how big embedding is with each engine, beside a plain loop and `nn.LSTM`.

python benchmarks/inference.py --models original --batch-sizes 8,32
"""

import copy
import functools
import json
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
from hf_elmo.bundled import resolve_name
from hf_elmo.inference.backend import Backend, Quantization, choose_backend
from hf_elmo.inference.embedding import embed_layers

TEXT = Path(__file__).parents[1] / "tests" / "data" / "lighthouse.txt"
SIZES: dict[str, dict[str, Any]] = {
    "small": {"projection_size": 128, "cell_size": 1024, "num_highway_layers": 1},
    "medium": {"projection_size": 256, "cell_size": 2048, "num_highway_layers": 1},
    "original": {},
}
# Dtype, backend and quantization of each contender.
ENGINES: dict[str, tuple[str, Backend, Quantization]] = {
    "float32": ("float32", "auto", None),
    "bfloat16": ("bfloat16", "auto", None),
    "float16": ("float16", "auto", None),
    "int8": ("float32", "auto", "int8"),
    "torch float32": ("float32", "torch", None),
    "torch bfloat16": ("bfloat16", "torch", None),
    "onnx float32": ("float32", "onnx", None),
}
EXACT = 2e-4  # greatest difference of the plain loop to an engine in float32
ROUNDED = 0.2  # and in bfloat16 or int8
BATCH_ONE_SHARE = 4  # of the sentences, every fourth runs alone: the plain loop takes a minute else
PROBE = """
import json, sys, time
import psutil, torch
from transformers import PreTrainedModel  # `import transformers` alone puts its 130 MB off
imported = psutil.Process().memory_info().rss
from hf_elmo.corpus.sentence_embedder import load_model
from hf_elmo.inference.embedding import embed_layers
folder, dtype, backend, quantization, text, num_sentences = sys.argv[1:]
sentences = [line.split() for line in open(text, encoding="utf-8")][: int(num_sentences)]
sentences.sort(key=len)
start = time.perf_counter()
loaded = load_model(folder, dtype=dtype, backend=backend, quantization=quantization or None)
list(embed_layers(sentences[:1], *loaded, backend=backend))
first = time.perf_counter()
for begin in range(0, len(sentences), 32):
    list(embed_layers(sentences[begin : begin + 32], *loaded, backend=backend))
status = open("/proc/self/status").read()  # Linux; ru_maxrss would be that of the parent
peak = int(status.partition("VmHWM:")[2].split()[0])
print(json.dumps([first - start, (peak * 1024 - imported) / 2**20]))
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


def measure_rows(
    model: ElmoModel,
    tokenizer: ElmoTokenizer,
    sentences: Sentences,
    batch_size: int,
    engines: list[str],
    repeats: int,
) -> list[list[str]]:
    """Measure words a second of all contenders at a batch size, a row each."""
    sentences = sorted(sentences, key=len, reverse=True)
    sentences = sentences[:: BATCH_ONE_SHARE if batch_size == 1 else 1]
    starts = range(0, len(sentences), batch_size)
    batches = [Batch(sentences[start : start + batch_size], model, tokenizer) for start in starts]
    plain, native = PlainBilm(copy.deepcopy(model)), make_native(model)

    @torch.inference_mode()
    def run_plain() -> list[Tensor]:
        outputs = [plain(batch.ids, batch.lengths) for batch in batches]
        return [layer for layers in outputs for layer in layers]

    @torch.inference_mode()
    def run_native() -> None:
        for batch in batches:
            for direction in native:
                direction(batch.packed)

    def embed(engine: Any) -> list[Tensor]:
        return [
            layers
            for batch in batches
            for layers in embed_layers(
                batch.sentences, engine, tokenizer, max_batch_tokens=10**6, backend="torch"
            )
        ]

    @torch.inference_mode()
    def run_lstm(engine: Any) -> None:
        for batch in batches:
            engine.run_bilm(batch.packed.data.to(engine.dtype), batch.sizes)

    contenders: dict[str, Callable[[], Any]] = {"plain loop": run_plain}
    for name in engines:
        dtype, backend, quantization = ENGINES[name]
        copied = copy.deepcopy(model).to(getattr(torch, dtype))
        engine = choose_backend(copied, backend, quantization)
        tolerance = EXACT if name.endswith("float32") else ROUNDED
        check(embed(engine), run_plain(), batches, tolerance)
        contenders[name] = functools.partial(embed, engine)
        contenders[f"{name}, LSTM alone"] = functools.partial(run_lstm, engine)
    contenders["nn.LSTM alone"] = run_native
    seconds = measure(contenders, repeats)
    num_words = sum(map(len, sentences))
    return [
        [
            name,
            str(batch_size),
            f"{num_words / seconds[name]:,.0f}",
            f"{seconds['plain loop'] / seconds[name]:.1f}",
        ]
        for name in contenders
    ]


def check(ours: list[Tensor], plain: list[Tensor], batches: list[Batch], tolerance: float) -> None:
    """Check that the plain loop computes the same."""
    layers = iter(plain)
    results = iter(ours)
    for batch in batches:
        stacked = torch.stack([next(layers) for _ in range(len(plain) // len(batches))])
        for row, words in enumerate(batch.sentences):
            expected = stacked[:, row, 1 : len(words) + 1]
            torch.testing.assert_close(next(results).float(), expected, rtol=0, atol=tolerance)


def measure_process(folder: str, engine: str, text: Path, num_sentences: int) -> list[str]:
    """Load the model in a process of its own and embed at batch 32: seconds and MB."""
    dtype, backend, quantization = ENGINES[engine]
    arguments = [folder, dtype, backend, quantization or "", text, num_sentences]
    command = [sys.executable, "-c", PROBE, *map(str, arguments)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    first, peak = json.loads(output)
    return [f"{first:.2f}", f"{peak:.0f}"]


def measure_pipe(folder: str, sentences: Sentences, repeats: int) -> dict[str, float]:
    """Measure words a second of `nlp.pipe`, in docs of a sentence, of `nlp(doc)`, and to spell."""
    tokenizer = ElmoTokenizer.from_pretrained(folder)
    contenders: dict[str, Callable[[], Any]] = {
        "tokenizer": lambda: tokenizer(sentences, is_split_into_words=True)
    }
    for backend in ("torch", "onnx"):
        nlp = spacy.blank("en")
        model = {"@architectures": "spacy_elmo.ElmoModel.v1", "name": folder, "backend": backend}
        nlp.add_pipe("elmo", config={"model": model})

        def pipe(nlp: spacy.Language = nlp) -> None:
            list(nlp.pipe([Doc(nlp.vocab, words=words) for words in sentences]))

        def one_by_one(nlp: spacy.Language = nlp) -> None:
            for words in sentences:
                nlp(Doc(nlp.vocab, words=words))

        pipe()
        contenders |= {f"nlp.pipe, {backend}": pipe, f"nlp(doc), {backend}": one_by_one}
    seconds = measure(contenders, repeats)
    num_words = sum(map(len, sentences))
    return {name: num_words / value for name, value in seconds.items()}


def print_table(header: tuple[str, ...], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    for row in (header, ["---"] * len(header), *rows):
        typer.echo(f"| {' | '.join(row)} |")
    typer.echo()


def main(
    text: Annotated[
        Path, typer.Argument(help="A sentence a line, words between white space.")
    ] = TEXT,
    models: Annotated[
        str, typer.Option(help=f"Of {', '.join(SIZES)} (random weights), or a model's name.")
    ] = "elmo-mini-en,original",
    batch_sizes: Annotated[str, typer.Option(help="Sentences in a batch.")] = "1,8,32,64",
    sentences: Annotated[int, typer.Option(help="Sentences of the text.")] = 64,
    repeats: Annotated[int, typer.Option(help="Interleaved runs; medians count.")] = 5,
    threads: Annotated[int, typer.Option(help="Threads of PyTorch and of ONNX Runtime.")] = 2,
    engines: Annotated[str, typer.Option(help=f"Of {', '.join(ENGINES)}.")] = ",".join(ENGINES),
) -> None:
    """Print tables of words a second, of memory and of the time to the first vector.

    The plain loop is what the programs of 2018 did, in float32. All words are in the word cache,
    but for the plain loop. "LSTM alone" runs from word vectors to layers; `nn.LSTM` has no clips
    and no residuals. At batch 1 every fourth sentence is run.
    """
    torch.set_num_threads(threads)
    words = [line.split() for line in text.read_text(encoding="utf-8").splitlines()][:sentences]
    typer.echo(
        f"Words a second, {len(words)} sentences of {sum(map(len, words))} words, {threads} "
        f"threads, PyTorch {torch.__version__}, {date.today()}; `{' '.join(sys.argv)}`\n"
    )
    for name in models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            if name in SIZES:
                torch.manual_seed(0)
                ElmoModel(ElmoConfig(**SIZES[name])).save_pretrained(folder)
                ElmoTokenizer().save_pretrained(folder)
            source = folder if name in SIZES else resolve_name(name)
            model = ElmoModel.from_pretrained(source, dtype=torch.float32)
            tokenizer = ElmoTokenizer.from_pretrained(source)
            rows = [
                row
                for size in map(int, batch_sizes.split(","))
                for row in measure_rows(model, tokenizer, words, size, engines.split(","), repeats)
            ]
            print_table((name, "batch", "words/s", "to plain loop"), rows)
            processes = [
                [engine, *measure_process(source, engine, text, sentences)]
                for engine in engines.split(",")
            ]
            print_table((name, "first vector, s", "peak memory, MB"), processes)
            pipes = measure_pipe(source, words, repeats)
            print_table((name, "words/s"), [[key, f"{x:,.0f}"] for key, x in pipes.items()])


if __name__ == "__main__":
    typer.run(main)

"""The command `python -m hf_elmo embed`."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, cast

import typer
from torch import distributed

from hf_elmo.bundled import BUNDLED_NAME
from hf_elmo.command_errors import report_errors
from hf_elmo.inference.backend import Backend
from hf_elmo.inference.embedding import MAX_BATCH_TOKENS, Layers, Pooling
from hf_elmo.text.text_reader import InputFormat

from .embed_files import embed_file
from .engines import embed_in_processes, embed_in_ray
from .output_parts import Engine
from .sentence_embedder import SentenceEmbedder
from .settings import OutputDtype, Settings
from .writers import OutputFormat

EngineName = Literal["local", "ray"]
InputFormatOption = Annotated[
    InputFormat,
    typer.Option(help="Tokenised sentences, a line each; raw text for spaCy; or CoNLL-U."),
]
PipelineOption = Annotated[str, typer.Option(help="spaCy language or pipeline for raw text.")]


@report_errors
def embed(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A text file, .gz .xz .bz2 .zst too, or .parquet; a pattern such as 'text/*.gz'; "
            "an address such as s3://bucket/text.parquet; - = stdin.",
        ),
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="What to write; its suffix tells the format.")
    ],
    model: Annotated[str, typer.Option(help="A folder or a name on the Hub.")] = BUNDLED_NAME,
    input_format: InputFormatOption = "text",
    pipeline: PipelineOption = "en",
    text_column: Annotated[
        str, typer.Option(help="Column of a parquet file: words, or lists of them.")
    ] = "text",
    id_column: Annotated[
        str | None, typer.Option(help="Column of a parquet file that names the sentences.")
    ] = None,
    output_format: Annotated[
        OutputFormat | None, typer.Option(help="How to write it, if no suffix tells it.")
    ] = None,
    layers: Annotated[
        str, typer.Option(help="all, top, mean, mix (the configured one), or a number; 0 = words.")
    ] = "all",
    pooling: Annotated[
        Pooling, typer.Option(help="Vectors of words (none), or one of each sentence.")
    ] = "none",
    output_dtype: Annotated[OutputDtype, typer.Option(help="Numbers of the output.")] = "float32",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="What the model computes in.")
    ] = "float32",
    quantization: Annotated[
        Literal["int8"] | None,
        typer.Option(help="Products in 8 bits, by ONNX Runtime: the fastest on a CPU."),
    ] = None,
    backend: Annotated[
        Backend, typer.Option(help="Engine: auto is ONNX Runtime on a CPU in float32 or int8.")
    ] = "auto",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; else the best.")] = None,
    max_batch_tokens: Annotated[
        int, typer.Option(help="Words that run at once; more take more memory.", min=1)
    ] = MAX_BATCH_TOKENS,
    shard: Annotated[
        str, typer.Option(help="2/3 = the second of three shares, in an output of its own.")
    ] = "1/1",
    engine: Annotated[
        EngineName, typer.Option(help="Who runs the workers: this machine, or Ray.")
    ] = "local",
    workers: Annotated[int, typer.Option(help="Processes that compute.", min=1)] = 1,
    cpus_per_worker: Annotated[
        int | None, typer.Option(help="Threads of a worker; else they share the cores.", min=1)
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster, or auto; else one on this machine.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
) -> None:
    """Write the vectors of each sentence of a corpus.

    \b
    python -m hf_elmo embed sentences.txt vectors.h5
    python -m hf_elmo embed corpus.conllu vectors.npz --input-format conllu --layers top
    zcat book.txt.gz | python -m hf_elmo embed - book.h5 --input-format raw --pooling mean
    python -m hf_elmo embed 'corpus/*.parquet' vectors.parquet --id-column id --workers 8
    torchrun --nproc-per-node 4 -m hf_elmo embed big.txt vectors.safetensors

    A sentence's key is its number: of its line, from 0, empty lines included, where each line is a
    tokenised sentence. Its value is (layers, words, width); (words, width) of one layer or a mix;
    without the words, pooled.

    \b
    .h5            one HDF5 file in the layout of AllenNLP's `elmo` command
    .npz           one NumPy file
    .parquet       one parquet file: ids, and lists of numbers
    .safetensors   a folder of files, and index.json: which sentence is in which
    .spacy         a folder of DocBin files, vectors in doc.user_data

    Interrupted, it goes on where it was when you run the same command again: until the output is
    complete, the vectors are in OUTPUT.partial. Under torchrun the processes share the work. With
    --shard 2/3, the output of vectors.h5 is vectors-00002-of-00003.h5.
    """  # noqa: D301 (click's mark of a paragraph that is not to be wrapped)
    settings = Settings(
        model=model,
        input_format=input_format,
        pipeline=pipeline,
        text_column=text_column,
        id_column=id_column,
        layers=int(layers) if layers.lstrip("-").isdigit() else cast(Layers, layers),
        pooling=pooling,
        dtype=output_dtype,
        max_batch_tokens=max_batch_tokens,
        shard=shard,
    )
    embedder = SentenceEmbedder(
        model,
        layers=settings.layers,
        pooling=pooling,
        output_dtype=output_dtype,
        dtype=dtype,
        quantization=quantization,
        backend=backend,
        device=device,
        max_batch_tokens=max_batch_tokens,
        threads=cpus_per_worker or _share_cores(engine, workers),
    )
    output = _name_shard(output, settings)
    with _join_torchrun() as num_ranks, _explain_full_disks():
        _check_engine(source, output, engine, workers, address, num_ranks)
        embed_file(
            sys.stdin.buffer if source == "-" else source,
            output,
            *embedder.load(),
            settings,
            output_format=output_format,
            overwrite=overwrite,
            progress=sys.stderr.isatty(),
            engine=_make_engine(engine, embedder, workers, address),
        )
    typer.echo(f"Wrote {output}.", err=True)


def _share_cores(engine: EngineName, workers: int) -> int | None:
    """Return the threads of a worker; None = as PyTorch would have it."""
    if engine == "ray":
        return 1
    return max(1, (os.cpu_count() or 1) // workers) if workers > 1 else None


def _name_shard(output: Path, settings: Settings) -> Path:
    """Give each shard an output of its own."""
    if settings.num_shards == 1:
        return output
    share = f"{settings.shard_number:05d}-of-{settings.num_shards:05d}"
    return output.with_name(f"{output.stem}-{share}{output.suffix}")


@contextmanager
def _join_torchrun() -> Iterator[int]:
    """Join the processes that torchrun started, if it did; yield how many they are."""
    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if num_ranks > 1:
        distributed.init_process_group("gloo", timeout=timedelta(days=7))
    yield num_ranks
    if num_ranks > 1:
        distributed.destroy_process_group()


@contextmanager
def _explain_full_disks() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OSError(
            f"{error}. What is complete is kept: make room, run the same again."
        ) from error


def _check_engine(
    source: str, output: Path, engine: EngineName, workers: int, address: str | None, num_ranks: int
) -> None:
    if source == "-" and num_ranks > 1:
        raise ValueError("Several processes cannot share stdin; write the text to a file first.")
    if num_ranks > 1 and (workers > 1 or engine == "ray"):
        raise ValueError(
            "Expected one worker under torchrun, whose processes share the work: leave out "
            "--workers and --engine."
        )
    if address is not None and engine != "ray":
        raise ValueError(f"Expected --engine ray with --address, got {engine}.")
    if ":/" in str(output):
        raise ValueError(
            f"Expected an output on this machine, got the address {output}. Copy it there when it "
            "is complete."
        )


def _make_engine(
    name: EngineName, embedder: SentenceEmbedder, workers: int, address: str | None
) -> Engine | None:
    """Make what computes the vectors; None = this process."""
    if name == "ray":
        return partial(
            embed_in_ray,
            embedder=embedder,
            num_workers=workers,
            cpus_per_worker=embedder.threads or 1,
            address=address,
        )
    if workers == 1:
        return None
    return partial(embed_in_processes, embedder=embedder, num_workers=workers)

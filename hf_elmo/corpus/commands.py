"""The command `python -m hf_elmo embed`."""

import errno
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, cast

import torch
import typer
from torch import distributed

from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.command_errors import report_errors
from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.tokenization_elmo import ElmoTokenizer

from .embed_files import embed_file
from .embedding import MAX_BATCH_TOKENS, Layers, Pooling
from .parts import OutputDtype, Settings
from .text_reader import InputFormat
from .writers import OutputFormat

InputFormatOption = Annotated[
    InputFormat,
    typer.Option(help="Tokenised sentences, a line each; raw text for spaCy; or CoNLL-U."),
]
PipelineOption = Annotated[str, typer.Option(help="spaCy language or pipeline for raw text.")]


@report_errors
def embed(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A text file, .gz .xz .bz2 .zst too; - = stdin.")
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="What to write; its suffix tells the format.")
    ],
    model: Annotated[str, typer.Option(help="A folder or a name on the Hub.")] = BUNDLED_NAME,
    input_format: InputFormatOption = "text",
    pipeline: PipelineOption = "en",
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
        Literal["int8"] | None, typer.Option(help="Of the LSTMs' products: on a CPU, the fastest.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; else the best.")] = None,
    max_batch_tokens: Annotated[
        int, typer.Option(help="Words that run at once; more take more memory.", min=1)
    ] = MAX_BATCH_TOKENS,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
) -> None:
    """Write the vectors of each sentence of a text.

    \b
    python -m hf_elmo embed sentences.txt vectors.h5
    python -m hf_elmo embed corpus.conllu vectors.npz --input-format conllu --layers top
    zcat book.txt.gz | python -m hf_elmo embed - book.h5 --input-format raw --pooling mean
    torchrun --nproc-per-node 4 -m hf_elmo embed big.txt vectors.safetensors

    A sentence's key is its number: of its line, from 0, empty lines included, where each line is a
    tokenised sentence. Its value is (layers, words, width); (words, width) of one layer or a mix;
    without the words, pooled.

    \b
    .h5            one HDF5 file in the layout of AllenNLP's `elmo` command
    .npz           one NumPy file
    .safetensors   a folder of files, and index.json: which sentence is in which
    .spacy         a folder of DocBin files, vectors in doc.user_data

    Interrupted, it goes on where it was when you run the same command again: until the output is
    complete, the vectors are in OUTPUT.partial. Under torchrun the processes share the work.
    """  # noqa: D301 (click's mark of a paragraph that is not to be wrapped)
    settings = Settings(
        model=model,
        input_format=input_format,
        pipeline=pipeline,
        layers=int(layers) if layers.lstrip("-").isdigit() else cast(Layers, layers),
        pooling=pooling,
        dtype=output_dtype,
        max_batch_tokens=max_batch_tokens,
    )
    is_shared = int(os.environ.get("WORLD_SIZE", "1")) > 1  # torchrun's
    if is_shared:
        distributed.init_process_group("gloo", timeout=timedelta(days=7))
    bilm = _load(ElmoModel, model, dtype=getattr(torch, dtype)).to(_find_device(device))
    try:
        embed_file(
            _open_source(source, is_shared),
            output,
            bilm.quantize(quantization),
            _load(ElmoTokenizer, model),
            settings,
            output_format=output_format,
            overwrite=overwrite,
            progress=sys.stderr.isatty(),
        )
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OSError(
            f"{error}. What is complete is kept: make room, run the same again."
        ) from error
    if is_shared:
        distributed.destroy_process_group()
    typer.echo(f"Wrote {output}.", err=True)


def _open_source(source: str, is_shared: bool) -> Path | BinaryIO:
    if source != "-":
        return Path(source)
    if is_shared:
        raise ValueError("Several processes cannot share stdin; write the text to a file first.")
    return sys.stdin.buffer


def _load(kind: type[Any], name: str, **options: Any) -> Any:
    if Path(name).is_file():
        raise ValueError(
            f"Expected a model's folder or name, got the file {name}. If it is an old checkpoint, "
            f"convert it first: elmo-convert {name} my-elmo"
        )
    try:
        return kind.from_pretrained(resolve_name(name), **options)
    except OSError as error:
        raise ValueError(
            f"Could not load {name!r}, which may be a folder, a name on the Hugging Face Hub or "
            f"{BUNDLED_NAME!r}: {error}"
        ) from error


def _find_device(name: str | None) -> torch.device:
    if name is not None:
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError) as error:  # the latter where torch has no CUDA
            raise ValueError(
                f"Expected a device that is here, cpu, cuda or the like, got {name!r}."
            ) from error
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())

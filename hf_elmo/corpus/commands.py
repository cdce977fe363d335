"""Command: `python -m hf_elmo embed`."""

import errno
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, cast

import typer

from hf_elmo.bundled import BUNDLED_NAME
from hf_elmo.command_errors import report_errors
from hf_elmo.inference.backend import Backend
from hf_elmo.inference.batches import MAX_BATCH_TOKENS
from hf_elmo.inference.embedding import Layers, Pooling
from hf_elmo.text.text_reader import InputFormat

from .embed_files import embed_file
from .local_workers import embed_in_processes
from .rows import OutputDtype, Settings
from .sentence_embedder import SentenceEmbedder
from .shards import Shard
from .writers import OutputFormat

InputFormatOption = Annotated[
    InputFormat,
    typer.Option(
        help="text: one tokenised sentence per line; raw: one paragraph per line, split by spaCy; "
        "conllu: CoNLL-U."
    ),
]
PipelineOption = Annotated[
    str, typer.Option(help="spaCy language or pipeline for --input-format raw.")
]
DEFAULT_PIPELINE = "en"


def check_pipeline(input_format: InputFormat, pipeline: str) -> None:
    """Refuse a pipeline that has no effect."""
    if input_format != "raw" and pipeline != DEFAULT_PIPELINE:
        raise ValueError(
            f"Expected --input-format raw with --pipeline {pipeline}, got {input_format}: only raw "
            "text is split by spaCy."
        )


@report_errors
def embed(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="Text file (also .gz .xz .bz2 .zst) or .parquet; pattern such as 'text/*.gz'; "
            "address such as s3://bucket/text.parquet; or - for standard input.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT", help="Output file or folder; its suffix selects the format."
        ),
    ],
    model: Annotated[str, typer.Option(help="Model: a folder or a Hub name.")] = BUNDLED_NAME,
    input_format: InputFormatOption = "text",
    pipeline: PipelineOption = DEFAULT_PIPELINE,
    text_column: Annotated[
        str,
        typer.Option(
            help="Parquet column with the text: words separated by spaces, or lists of words."
        ),
    ] = "text",
    id_column: Annotated[
        str | None, typer.Option(help="Parquet column with ids of the sentences.")
    ] = None,
    output_format: Annotated[
        OutputFormat | None, typer.Option(help="Output format; default: by the suffix of OUTPUT.")
    ] = None,
    layers: Annotated[
        str,
        typer.Option(
            help="Layers to write: all, top, mean, mix (with the weights of the model's "
            "configuration), or the index of a layer (0: word vectors)."
        ),
    ] = "all",
    pooling: Annotated[
        Pooling, typer.Option(help="Pooling over the words of each sentence.")
    ] = "none",
    output_dtype: Annotated[OutputDtype, typer.Option(help="Data type of the output.")] = "float32",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        typer.Option(help="Data type of the computation."),
    ] = "float32",
    quantization: Annotated[
        Literal["int8"] | None,
        typer.Option(help="int8: LSTM products in 8 bits with ONNX Runtime, the fastest on a CPU."),
    ] = None,
    backend: Annotated[
        Backend,
        typer.Option(
            help="PyTorch or ONNX Runtime; auto: the faster of the two for this model and CPU."
        ),
    ] = "auto",
    device: Annotated[
        str | None,
        typer.Option(help="Device, such as cpu or cuda:1; default: a GPU if there is one."),
    ] = None,
    max_batch_tokens: Annotated[
        int, typer.Option(help="Words per forward pass; more words need more memory.", min=1)
    ] = MAX_BATCH_TOKENS,
    shard: Annotated[
        str, typer.Option(help="Share of the corpus for this run: 2/3 is the second of 3 shares.")
    ] = "1/1",
    workers: Annotated[int, typer.Option(help="Number of worker processes.", min=1)] = 1,
    cpus_per_worker: Annotated[
        int | None,
        typer.Option(help="Threads per worker; default: cores / workers.", min=1),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite an existing output.")
    ] = False,
) -> None:
    """Write the vectors of all sentences of a corpus.

    \b
    python -m hf_elmo embed sentences.txt vectors.h5
    python -m hf_elmo embed corpus.conllu vectors.npz --input-format conllu --layers top
    zcat book.txt.gz | python -m hf_elmo embed - book.h5 --input-format raw --pooling mean
    python -m hf_elmo embed 'corpus/*.parquet' vectors.parquet --id-column id --workers 8

    The output maps the number of each sentence to its vectors. Numbers start at 0. An empty line
    of --input-format text counts as a sentence. The vectors have the shape (layers, words, width)
    for all layers, else (words, width). With --pooling, there is no axis of words.

    \b
    .h5            one HDF5 file in the layout of AllenNLP's `elmo` command
    .npz           one NumPy file
    .parquet       one parquet file: a column of ids, and a column of flat lists
    .safetensors   a folder of files, and index.json, which maps sentences to files

    After an interruption, run the same command again to resume. Until the output is complete, the
    vectors are in OUTPUT.partial. With --shard 2/3, vectors.h5 is named vectors-00002-of-00003.h5.
    """  # noqa: D301 (click's marker for text without wrapping)
    if ":/" in output.as_posix()[2:]:  # not C:/
        raise ValueError(
            f"Expected a local output, got the address {output}. Copy the complete output there "
            "afterwards."
        )
    check_pipeline(input_format, pipeline)
    settings = Settings(
        model=model,
        input_format=input_format,
        pipeline=pipeline,
        text_column=text_column,
        id_column=id_column,
        layers=int(layers) if re.fullmatch("-?[0-9]+", layers) else cast(Layers, layers),
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
        threads=cpus_per_worker
        or (max(1, (os.cpu_count() or 1) // workers) if workers > 1 else None),
    )
    output = Shard.parse(shard).name_output(output)
    try:
        embed_file(
            _open_stdin() if source == "-" else source,
            output,
            *embedder.load(),
            settings,
            output_format=output_format,
            overwrite=overwrite,
            progress=sys.stderr.isatty(),
            engine=partial(embed_in_processes, embedder=embedder, num_workers=workers)
            if workers > 1
            else None,
        )
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f"{error}. Complete parts are kept. Make room, then run the same command again."
        ) from error
    typer.echo(f"Wrote {output}.", err=True)


def _open_stdin() -> BinaryIO:
    if sys.stdin is None:
        raise ValueError("Expected text from standard input, but it is closed.")
    return sys.stdin.buffer

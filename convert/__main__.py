"""The command line: `elmo-convert SOURCE TARGET`."""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from convert.catalogue import make_table
from convert.conversion import Conversion, convert_checkpoint
from convert.format_detection import FORMATS
from convert.layout import NUMBER_SIZES
from hf_elmo.command_errors import escape_controls, report_errors, run_app

EXAMPLES = """
Convert an old ELMo checkpoint to a folder for from_pretrained, or such a folder to an old format.

The format of SOURCE is detected; see --list-formats. TARGET is written atomically. Old formats have
more files, such as options, which are written beside TARGET. No other file is changed.

Examples:

    elmo-convert elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5 my-elmo --license apache-2.0

    elmo-convert weights.hdf5 my-elmo --options elsewhere/options.json --dtype float16

    elmo-convert weights.hdf5 my-elmo --verify embeddings.hdf5 --sentences sentences.txt

    elmo-convert weights.hdf5 my-lm --softmax softmax_weights.hdf5 --vocabulary vocab.txt

    elmo-convert 217.zip norwegian-elmo --dry-run

    elmo-convert many-langs/de german-elmo

    elmo-convert allenai/original my-lm --softmax allenai/original-softmax

    elmo-convert --list-published --language de

    elmo-convert model.tar.gz my-elmo --push my-name/my-elmo

    elmo-convert my-elmo weights.hdf5 --to bilm-hdf5
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _list_formats(is_asked: bool) -> None:
    if not is_asked:
        return
    for known in FORMATS:
        ways = "from, --to" if known.writer else "from"
        typer.echo(f"{known.name:16} {ways:10} {known.description}")
    raise typer.Exit


@app.command(help=EXAMPLES)
@report_errors
def main(
    source: Annotated[
        str | None,
        typer.Argument(
            help="Checkpoint: file, folder, archive, web address, published model, or Hub name."
        ),
    ] = None,
    target: Annotated[
        Path | None, typer.Argument(help="Folder to write; a file for --to bilm-hdf5 or allennlp.")
    ] = None,
    *,
    to: Annotated[str, typer.Option(help="Format of TARGET; see --list-formats.")] = "huggingface",
    options: Annotated[
        str | None,
        typer.Option(
            help="Options file of the model; default: NAME_options.json beside NAME_weights.hdf5, "
            "or options.json."
        ),
    ] = None,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            help="File with one word per line, for a word table or a softmax; default: vocab.txt."
        ),
    ] = None,
    softmax: Annotated[
        str | None,
        typer.Option(
            help="Softmax to include (HDF5): file, web address or published softmax; default: that "
            "of SOURCE, or this program's own file beside it, if any."
        ),
    ] = None,
    token_embeddings: Annotated[
        str | None,
        typer.Option(
            help="HDF5 file of bilm-tf's dump_token_embeddings. Its word vectors replace the "
            "character encoder."
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help=f"Data type of TARGET: {', '.join(NUMBER_SIZES)}.")
    ] = "float32",
    weights_license: Annotated[
        str | None, typer.Option("--license", help="Licence of the weights, for the model card.")
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(
            help="HDF5 or npz file with vectors to compare, from bilm-tf's dump_bilm_embeddings or "
            "AllenNLP's elmo command. It maps each sentence number to an array (layers + 1, "
            "words, width)."
        ),
    ] = None,
    sentences: Annotated[
        Path | None,
        typer.Option(
            help="Sentences of the --verify file, one per line; default: the sentences in that "
            "file, or the .txt file with the same name."
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace an existing TARGET and its own files beside it, such as options. A "
            "folder with files that do not belong to a model is kept.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Describe the conversion, but write nothing.")
    ] = False,
    push: Annotated[
        str | None, typer.Option(help="Upload the model to this Hub repository: organisation/name.")
    ] = None,
    list_formats: Annotated[
        bool,
        typer.Option(
            "--list-formats", help="List all formats.", callback=_list_formats, is_eager=True
        ),
    ] = False,
    list_published: Annotated[
        bool, typer.Option("--list-published", help="List all published models.")
    ] = False,
    language: Annotated[
        str | None, typer.Option(help="Language for --list-published: code or name.")
    ] = None,
) -> None:
    """Convert a checkpoint."""
    if list_published and source is not None:
        raise ValueError(f"Expected no SOURCE with --list-published, got {source}.")
    if language is not None and not list_published:
        raise ValueError("Expected --list-published together with --language.")
    if list_published:
        typer.echo(make_table(language))
        return
    if source is None or target is None:
        raise ValueError("Expected SOURCE and TARGET; see --help.")
    signal.signal(signal.SIGTERM, _interrupt)
    conversion = convert_checkpoint(
        source,
        target,
        to=to,
        options=options,
        vocabulary=vocabulary,
        softmax=softmax,
        token_embeddings=token_embeddings,
        dtype=dtype,
        weights_license=weights_license,
        verify=verify,
        sentences=sentences,
        force=force,
        dry_run=dry_run,
        push=push,
        progress=sys.stderr.isatty(),
    )
    typer.echo(escape_controls(describe(conversion, dtype)))
    typer.echo("Nothing was written." if dry_run else f"Wrote {target}.")
    if conversion.url is not None:
        typer.echo(f"Pushed to {conversion.url}.")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # so that the temporary folder is removed


def describe(conversion: Conversion, dtype: str) -> str:
    """Describe a conversion in a few lines."""
    config = conversion.config
    inputs = []
    if config.char_embedding_size:
        inputs.append(
            f"characters ({config.char_vocab_size - 1}, {config.max_characters_per_token} per word)"
        )
    if config.word_embedding_size:
        inputs.append(f"words ({config.word_vocab_size - 1:,})")
    directions = "both directions" if config.bidirectional else "one direction"
    lines = [
        f"{conversion.source}: {conversion.format} ({', '.join(p.name for p in conversion.files)})",
        f"  reads {' and '.join(inputs)}",
        f"  {config.num_hidden_layers} LSTM layers in {directions}, cells {config.cell_size}, "
        f"output {config.hidden_size}",
        f"  {conversion.num_parameters:,} parameters, {conversion.num_bytes:,} bytes in {dtype}",
    ]
    lines += [
        f"  downloaded {item.name} from {item.address}: {item.bytes:,} bytes, SHA-256 {item.sha256}"
        for item in conversion.downloads
    ]
    if config.vocab_size:
        lines.append(f"  predicts {config.vocab_size:,} words")
    lines += [f"  omitted: {line}" for line in conversion.left_out]
    if conversion.difference is not None:
        lines.append(f"  verified: largest difference {conversion.difference:.2g}")
    return "\n".join(lines)


def run() -> None:
    """Run the command `elmo-convert`."""
    run_app(app)


if __name__ == "__main__":
    run()

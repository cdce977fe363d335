"""The command line: `elmo-convert SOURCE TARGET`."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from transformers.utils import logging

from convert.catalogue import make_table
from convert.checkpoint import Checkpoint
from convert.conversion import TARGETS, convert_checkpoint
from convert.verification import TOLERANCES
from hf_elmo.command_errors import report_errors, run_app

EXAMPLES = """
Convert an old ELMo checkpoint to a folder for from_pretrained, or such a folder to bilm-tf's HDF5.

The format of SOURCE is detected. TARGET is written beside its place, and then renamed.

Examples:

    elmo-convert elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5 my-elmo --license apache-2.0

    elmo-convert weights.hdf5 my-elmo --verify embeddings.hdf5 --sentences sentences.txt

    elmo-convert weights.hdf5 my-lm --softmax softmax_weights.hdf5 --vocabulary vocab.txt

    elmo-convert many-langs/de german-elmo

    elmo-convert allenai/original my-lm --softmax allenai/original-softmax

    elmo-convert my-elmo weights.hdf5 --to bilm-hdf5
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Option = typer.Option


@app.command(help=EXAMPLES)
@report_errors
def main(
    source: Annotated[
        str | None,
        typer.Argument(help="File, folder, archive, web address, published model, or Hub name."),
    ] = None,
    target: Annotated[
        Path | None, typer.Argument(help="Folder to write; a file for --to bilm-hdf5.")
    ] = None,
    *,
    to: Annotated[str, Option(help=f"Format of TARGET: {' or '.join(TARGETS)}.")] = TARGETS[0],
    options: Annotated[
        str | None,
        Option(help="Options file; default: NAME_options.json beside NAME_weights.hdf5."),
    ] = None,
    vocabulary: Annotated[
        str | None, Option(help="Words of a word table or softmax, one per line; default: beside.")
    ] = None,
    softmax: Annotated[
        str | None, Option(help="Softmax (HDF5): file, web address or published softmax.")
    ] = None,
    revision: Annotated[str | None, Option(help="Branch, tag or commit of a Hub name.")] = None,
    dtype: Annotated[str, Option(help=f"Data type: {', '.join(TOLERANCES)}.")] = "float32",
    weights_license: Annotated[
        str | None, Option("--license", help="Licence of the weights, for the model card.")
    ] = None,
    verify: Annotated[
        Path | None, Option(help="HDF5 or npz file of old vectors to compare, by sentence number.")
    ] = None,
    sentences: Annotated[
        Path | None, Option(help="Sentences of --verify, one per line; default: its .txt file.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace the files of TARGET.")] = False,
    list_published: Annotated[
        bool, Option("--list-published", help="List all published models.")
    ] = False,
    language: Annotated[
        str | None, Option(help="Language for --list-published: code or name.")
    ] = None,
) -> None:
    """Convert a checkpoint."""
    if list_published:
        typer.echo(make_table(language))
        return
    if source is None or target is None:
        raise ValueError("Expected SOURCE and TARGET; see --help.")
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # the error says the same
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes the temporary folder
    checkpoint = convert_checkpoint(
        source,
        target,
        to=to,
        options=options,
        vocabulary=vocabulary,
        softmax=softmax,
        revision=revision,
        dtype=dtype,
        weights_license=weights_license,
        verify=verify,
        sentences=sentences,
        force=force,
        progress=sys.stderr.isatty(),
    )
    typer.echo(f"{describe(checkpoint)}\nWrote {target}.")


def describe(checkpoint: Checkpoint) -> str:
    """Describe a conversion in a few lines."""
    config, lines = checkpoint.config, [f"{checkpoint.source}: {checkpoint.format}"]
    directions = "both directions" if config.bidirectional else "one direction"
    count = sum(tensor.numel() for tensor in checkpoint.state.values())
    lines.append(f"  from {', '.join(path.name for path in checkpoint.files)}")
    lines.append(f"  {config.num_hidden_layers} LSTM layers in {directions}, {count:,} parameters")
    lines += [f"  predicts {config.vocab_size:,} words"] if config.vocab_size else []
    lines += [f"  omitted: {note}" for note in checkpoint.notes]
    if checkpoint.difference is not None:
        lines.append(f"  verified: largest difference {checkpoint.difference:.2g}")
    return "\n".join(lines)


def run() -> None:
    """Run the command `elmo-convert`."""
    run_app(app)


if __name__ == "__main__":
    run()

"""The command line: `python -m spacy_elmo COMMAND`."""

from pathlib import Path
from typing import Annotated

import spacy
import typer

from hf_elmo.command_errors import report_errors, run_app
from hf_elmo.files.output_file import check_output_file

from .mix_report import collect_mixes, draw_table, plot_mixes

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def main() -> None:
    """ELMo in spaCy pipelines."""


@app.command()
@report_errors
def show_mix(
    pipeline: Annotated[
        str, typer.Argument(metavar="PIPELINE", help="Pipeline: folder or installed package.")
    ],
    plot: Annotated[
        Path | None,
        typer.Option(help="Write a plot to this file, such as mix.svg; needs matplotlib."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite an existing plot.")
    ] = False,
) -> None:
    """Show how each component of a trained pipeline mixes ELMo's layers.

    Each row is a mix: the shares of the word vectors and of each LSTM layer, then gamma. The shares
    add up to 1; gamma is the factor of the weighted sum.
    """
    if plot is not None:
        check_output_file(plot, overwrite=overwrite)
    mixes = collect_mixes(spacy.load(pipeline))
    if not mixes:
        raise ValueError(
            f"No component of {pipeline} has learned a mix: its model needs the architecture "
            "spacy_elmo.ElmoListener.v1."
        )
    typer.echo(draw_table(mixes))
    if plot is not None:
        plot_mixes(mixes, plot)


if __name__ == "__main__":
    run_app(app)

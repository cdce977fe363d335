"""The command line: `python -m spacy_elmo COMMAND`."""

from pathlib import Path
from typing import Annotated

import spacy
import typer

from hf_elmo.command_errors import report_errors

from .mix_report import collect_mixes, draw_table, plot_mixes

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def main() -> None:
    """ELMo in spaCy pipelines."""


@app.command()
@report_errors
def show_mix(
    pipeline: Annotated[
        str, typer.Argument(metavar="PIPELINE", help="A folder or an installed package.")
    ],
    plot: Annotated[
        Path | None,
        typer.Option(help="Also draw them to this file, such as mix.svg; needs matplotlib."),
    ] = None,
) -> None:
    """Show how each component of a trained pipeline mixes ELMo's layers.

    A row for each mix: the share of the word vectors and of each LSTM layer (they sum to 1), and
    gamma, by which the sum is multiplied.
    """
    mixes = collect_mixes(spacy.load(pipeline))
    if not mixes:
        raise ValueError(
            f"No component of {pipeline} has learned a mix: that takes an architecture "
            "spacy_elmo.ElmoListener.v1 in its model."
        )
    typer.echo(draw_table(mixes))
    if plot is not None:
        plot_mixes(mixes, plot)


if __name__ == "__main__":
    app()

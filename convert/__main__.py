"""The command line: `python -m convert SOURCE TARGET`, also installed as `elmo-convert`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from convert.checkpoint import DTYPES, ConversionError
from convert.conversion import FORMATS, convert_checkpoint

app = typer.Typer(add_completion=False)


def _list_formats(value: bool) -> None:
    if value:
        for known in FORMATS:
            ways = " and ".join(
                way for way, has in (("read", known.open), ("write", known.write)) if has
            )
            typer.echo(f"{known.name}: {known.description} ({ways})")
        raise typer.Exit


@app.command()
def main(
    source: Annotated[Path, typer.Argument(help="File or folder of the checkpoint.")],
    target: Annotated[Path, typer.Argument(help="File or folder to write.")],
    to: Annotated[str, typer.Option(help="Format to write.")] = "huggingface",
    options: Annotated[
        Path | None, typer.Option(help="options.json, if it is not beside the weights.")
    ] = None,
    vocabulary: Annotated[Path | None, typer.Option(help="Vocabulary, a word a line.")] = None,
    softmax: Annotated[Path | None, typer.Option(help="HDF5 file of the softmax.")] = None,
    token_embeddings: Annotated[
        Path | None, typer.Option(help="Word vectors in place of the characters.")
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")] = "float32",
    weights_license: Annotated[
        str | None, typer.Option("--license", help="Licence of the weights.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the target.")] = False,
    list_formats: Annotated[
        bool,
        typer.Option("--list-formats", help="List the formats.", callback=_list_formats),
    ] = False,
) -> None:
    """Convert an old ELMo checkpoint to the Hugging Face layout, or back."""
    try:
        convert_checkpoint(
            source,
            target,
            to=to,
            options=options,
            vocabulary=vocabulary,
            softmax=softmax,
            token_embeddings=token_embeddings,
            dtype=dtype,
            weights_license=weights_license,
            force=force,
            progress=sys.stderr.isatty(),
        )
    except (ConversionError, OSError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"Wrote {target}.")


if __name__ == "__main__":
    app()

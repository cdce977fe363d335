"""The command `python -m hf_elmo demo`."""

from pathlib import Path
from typing import Annotated

import typer

from hf_elmo.bundled import BUNDLED_NAME
from hf_elmo.command_errors import report_errors


@report_errors
def demo(
    folder: Annotated[Path, typer.Argument(help="Folder to write; new or empty.")],
    model: Annotated[str, typer.Option(help="A folder or a name on the Hub.")] = BUNDLED_NAME,
    int8: Annotated[
        bool, typer.Option("--int8", help="Store the LSTMs' weights in 8 bits: a smaller page.")
    ] = False,
    pipeline: Annotated[
        list[str] | None,
        typer.Option(help="Trained spaCy pipeline; the page shows its entities. Repeatable."),
    ] = None,
    onnxruntime_web: Annotated[
        Path | None,
        typer.Option(help="Folder of the package onnxruntime-web; default: npm installs it."),
    ] = None,
) -> None:
    """Write a web page that runs the model in the browser, for any static host.

    \b
    python -m hf_elmo demo my-demo
    python -m http.server --bind 127.0.0.1 --directory my-demo

    For a word in a sentence, the page shows the nearest words by each layer and by a mix of layers,
    and the words that the model expects at that place. It also shows maps of senses. The page sends
    no data to any server. The command needs npm, or --onnxruntime-web.
    """  # noqa: D301 (click's mark of a paragraph that is not to be wrapped)
    from .build import write_demo

    write_demo(folder, model, int8=int8, pipelines=pipeline or (), runtime=onnxruntime_web)
    size = sum(path.stat().st_size for path in folder.iterdir())
    typer.echo(f"Wrote {folder}, {size:,} bytes. To see it on this machine:", err=True)
    typer.echo(f"python -m http.server --bind 127.0.0.1 --directory {folder}", err=True)

"""The command `python -m hf_elmo demo`."""

from pathlib import Path
from typing import Annotated

import typer

from hf_elmo.bundled import BUNDLED_NAME
from hf_elmo.command_errors import report_errors

from .entities import make_entities
from .explorer import Explorer
from .page import make_page
from .server import DemoServer


def add_commands(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command()(demo)


@report_errors
def demo(
    output: Annotated[Path, typer.Option(help="File to write.")] = Path("elmo-demo.html"),
    model: Annotated[str, typer.Option(help="A folder or a name on the Hub.")] = BUNDLED_NAME,
    pipeline: Annotated[
        list[str] | None,
        typer.Option(help="Trained spaCy pipeline, to show the entities it finds; repeatable."),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the page on localhost, for any sentence.")
    ] = False,
    port: Annotated[
        int, typer.Option(help="Of the server; 0 = any free.", min=0, max=65535)
    ] = 8000,
) -> None:
    """Write a page that shows what the model does: neighbours, senses, mixes, guesses.

    \b
    python -m hf_elmo demo
    python -m hf_elmo demo --model my-elmo --output my-demo.html
    python -m hf_elmo demo --serve

    The page is one file and needs no network. With --serve nothing is written; the page then takes
    sentences of your own, and nobody but this machine can reach it.
    """  # noqa: D301 (click's mark of a paragraph that is not to be wrapped)
    explorer = Explorer.load(model)
    entities = make_entities(pipeline) if pipeline else ""
    page = make_page(explorer, Path(model).name, is_served=serve, entities=entities)
    if not serve:
        output.write_text(page, encoding="utf-8")
        typer.echo(f"Wrote {output}, {len(page.encode()):,} bytes.")
        return
    with DemoServer(explorer, page, port) as server:
        typer.echo(f"Serving http://localhost:{server.server_port}/ until interrupted.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("Stopped.")

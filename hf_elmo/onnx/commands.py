"""The command `python -m hf_elmo export`."""

from pathlib import Path
from typing import Annotated

import typer
from transformers.utils import logging

from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.command_errors import report_errors
from hf_elmo.loading import check_name
from hf_elmo.modeling_elmo import ElmoModel


@report_errors
def export(
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="File to write: model.onnx.")],
    model: Annotated[str, typer.Option(help="A folder or a name on the Hub.")] = BUNDLED_NAME,
    int8: Annotated[
        bool, typer.Option("--int8", help="Store the LSTMs' weights in 8 bits.")
    ] = False,
    opset: Annotated[int, typer.Option(help="Version of the ONNX operators.", min=18)] = 18,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
) -> None:
    """Write a biLM as one ONNX file, to be run without PyTorch.

    \b
    python -m hf_elmo export model.onnx
    python -m hf_elmo export model.onnx --model my-elmo --int8

    Inputs: input_ids (batch, tokens, characters), attention_mask (batch, tokens) and, if the model
    has a word lexicon, word_input_ids (batch, tokens), all int64. Outputs: hidden_states
    (layers + 1, batch, tokens, width) and elmo (batch, tokens, width), float32.

    The graph is compared with PyTorch before the file gets its name.
    """  # noqa: D301 (click's mark of a paragraph that is not to be wrapped)
    from .export import export_onnx

    name = resolve_name(model)
    check_name(name)
    logging.disable_progress_bar()
    bilm = ElmoModel.from_pretrained(name).eval()
    export_onnx(
        bilm, output, quantization="int8" if int8 else None, opset=opset, overwrite=overwrite
    )
    typer.echo(f"Wrote {output}, {output.stat().st_size:,} bytes.", err=True)

"""The command `python -m hf_elmo export`."""

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from huggingface_hub import ModelCard
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.utils import logging
from transformers.utils.hub import cached_file

from hf_elmo.bundled import resolve_name
from hf_elmo.command_errors import report_errors
from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.files.output_file import check_output_file
from hf_elmo.loading import ElmoPreTrainedModel
from hf_elmo.model_card import CARD_FILE
from hf_elmo.stored_model import OPTIONAL_FILE, load_config
from hf_elmo.tokenization_elmo import ElmoTokenizer

MODEL_FILE = "model.onnx"
# Settings of a loaded tokenizer that describe this computer.
LOCAL_SETTINGS = ("name_or_path", "is_local", "local_files_only", "tokenizer_file")
CONFIG_FILES = ("config.json", "tokenizer_config.json")
LOADERS = {
    "ElmoForTokenClassification": AutoModelForTokenClassification,
    "ElmoForSequenceClassification": AutoModelForSequenceClassification,
}


@report_errors
def export(
    model: Annotated[str, typer.Argument(help="Model: a folder, a Hub name, or elmo-mini-en.")],
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write to.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Store the LSTMs' weights in 8 bits.")
    ] = False,
    opset: Annotated[int, typer.Option(help="Version of the ONNX operators.", min=18, max=23)] = 18,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
) -> None:
    """Write a model as an ONNX file, which runs without PyTorch.

    \b
    python -m hf_elmo export elmo-mini-en exported
    python -m hf_elmo export my-tagger exported --int8

    FOLDER then contains model.onnx, config.json and the tokenizer's files. A biLM
    and the heads for token and sequence classification can be exported.

    \b
    inputs, int64
      input_ids        (batch, tokens, characters)
      attention_mask   (batch, tokens)
      word_input_ids   (batch, tokens), if the model has a word lexicon
    outputs, float32
      hidden_states    (layers + 1, batch, tokens, width), of a biLM
      elmo             (batch, tokens, width), of a biLM
      logits           of a head

    The file is written only if the graph's first output agrees with PyTorch's.
    """  # noqa: D301 (click's marker for text without wrapping)
    from .export import export_onnx

    name = resolve_name(model)
    logging.disable_progress_bar()
    loaded, tokenizer = _load(name), ElmoTokenizer.from_pretrained(name)
    output.mkdir(parents=True, exist_ok=True)
    is_own = Path(name).resolve() == output.resolve()  # the folder has all but the ONNX file
    others = (*CONFIG_FILES, *tokenizer.vocab_files_names.values())
    for file in (MODEL_FILE, *(() if is_own else others)):
        check_output_file(output / file, overwrite=overwrite)
    known = {name: x for name, x in tokenizer.init_kwargs.items() if name not in LOCAL_SETTINGS}
    settings = json.dumps(known, default=str)
    metadata = {"tokenizer": settings, "licence": _read_licence(name)}
    path = output / MODEL_FILE
    export_onnx(
        loaded,
        path,
        quantization="int8" if int8 else None,
        opset=opset,
        metadata=metadata,
        overwrite=overwrite,
    )
    if not is_own:
        loaded.config.save_pretrained(output)
        tokenizer.save_pretrained(output)
    typer.echo(f"Wrote {path}, {path.stat().st_size:,} bytes.", err=True)


def _load(name: str) -> ElmoPreTrainedModel:
    """Load a model with the head that its configuration names; refuse unsupported heads."""
    config = load_config(name)
    architecture = (config.architectures or [""])[0]
    if architecture not in LOADERS and not isinstance(config, ElmoConfig):
        raise ValueError(
            f"Expected an ELMo biLM or {', '.join(LOADERS)} to export, got "
            f"{architecture or config.model_type}."
        )
    loader = LOADERS.get(architecture, AutoModel)
    # `from_pretrained` returns models in evaluation mode.
    loaded: ElmoPreTrainedModel = loader.from_pretrained(name, dtype=torch.float32)
    return loaded


def _read_licence(name: str) -> str:
    """Read the licence from a model's card; empty if it is not stated."""
    card = cached_file(name, CARD_FILE, **OPTIONAL_FILE)
    return "" if card is None else str(ModelCard.load(card).data.license or "")

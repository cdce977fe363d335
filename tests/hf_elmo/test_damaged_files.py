"""Damaged folders and nonsense: refused in a line, soon, before anything is allocated."""

import json
import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer
from hf_elmo.__main__ import app
from hf_elmo.inference.backend import Backend
from hf_elmo.loading import HAS_OLD_CHECKPOINTING

# Transformers' own words for labels that are a number.
NO_LABELS = (
    "'id2label' expected a dict, got int"
    if HAS_OLD_CHECKPOINTING
    else "'int' object has no attribute 'items'"
)

DEEP = "[" * 100_000
Edit = Callable[[Path], Any]


@pytest.fixture
def folder(tiny_config: ElmoConfig, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    ElmoModel(tiny_config).save_pretrained(tmp_path / "model")
    ElmoTokenizer.from_config(tiny_config).save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("The bank .\n")
    return tmp_path / "model"


def embed(folder: Path, backend: Backend = "auto") -> str:
    """Run the command; return its last line."""
    text, output = folder.with_name("text.txt"), folder.with_name("vectors.h5")
    arguments = ["embed", text, output, "--model", folder, "--backend", backend]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0 or isinstance(result.exception, SystemExit), result.exception
    return result.output.strip().splitlines()[-1]


def write(name: str, text: str) -> Edit:
    return lambda folder: (folder / name).write_text(text)


def edit(name: str, **changes: Any) -> Edit:
    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text()) | changes
        (folder / name).write_text(json.dumps(content))

    return change


def configure(**changes: Any) -> Edit:
    return edit("config.json", **changes)


def tokenize(**changes: Any) -> Edit:
    return edit("tokenizer_config.json", **changes)


def replace_weight(make: Callable[[Tensor], Tensor]) -> Edit:
    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weights["forward_lstm.layers.0.bias"] = make(weights["forward_lstm.layers.0.bias"])
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return change


def cast(dtype: torch.dtype) -> Edit:
    return replace_weight(lambda weight: weight.to(dtype))


def fill(value: float) -> Edit:
    return replace_weight(lambda weight: torch.full_like(weight, value, dtype=torch.float64))


def index(text: str) -> Edit:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        (folder / "model.safetensors.index.json").write_text(text)

    return change


def pickle_weights(folder: Path, content: Any) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(content, protocol=2))


def store_as_integers(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({name: w.long() for name, w in weights.items()}, folder / "pytorch_model.bin")


def empty_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").touch()


NO_FLOATS = "Expected floating-point weights in "
DAMAGED: dict[str, tuple[Edit, str]] = {
    "bool": (cast(torch.bool), NO_FLOATS),
    "int64": (cast(torch.int64), NO_FLOATS),
    "complex": (cast(torch.complex64), NO_FLOATS),
    "float8": (cast(torch.float8_e4m3fn), NO_FLOATS),
    "integers in a pickle": (store_as_integers, NO_FLOATS),
    "NaN": (fill(torch.nan), "Expected finite weights, got NaN or infinity in forward_lstm"),
    "too large for float32": (fill(1e200), "Expected finite weights, got NaN or infinity in "),
    "misshapen": (replace_weight(lambda weight: weight[:3].clone()), "has misshapen tensors: "),
    "pickle": (lambda folder: pickle_weights(folder, {"a": Path()}), "The weights of "),
    "empty pickle": (empty_pickle, "Expected the files of an ELMo model in "),
    "config: list": (write("config.json", "[]"), "Expected the files of an ELMo model in "),
    "config: null": (write("config.json", "null"), "Expected the files of an ELMo model in "),
    "config: deep": (write("config.json", DEEP), "maximum recursion depth exceeded"),
    "bert": (configure(model_type="bert"), "Expected model_type 'elmo', got 'bert'"),
    "dtype": (configure(dtype="float8"), "Expected the files of an ELMo model in "),
    "labels": (configure(id2label=3), NO_LABELS),
    "number of labels": (configure(num_labels=10**12), "Expected num_labels from 0 to "),
    "quantization": (configure(quantization_config=1), "Expected the files of an ELMo model in "),
    "NaN in forget_bias": (configure(forget_bias=torch.nan), "Expected forget_bias from "),
    "too many layers": (configure(num_hidden_layers=10**9), "Expected num_hidden_layers from 1 to"),
    "many layers": (configure(num_hidden_layers=1000), "misses tensors: "),
    "many cells": (configure(cell_size=2**20, projection_size=2**10, hidden_size=2**11), "small"),
    "many characters": (configure(char_vocab_size=2**31 - 1), "files are too small for them"),
    "tokenizer: list": (write("tokenizer_config.json", "[]"), "Expected the files of an ELMo mod"),
    "tokenizer: deep": (write("tokenizer_config.json", DEEP), "maximum recursion depth exceeded"),
    "padding": (tokenize(char_padding_id=5), "Expected char_padding_id 261 in tokenizer_config"),
    "word's mark": (tokenize(word_start_char_id=3), "Expected word_start_char_id 259 in token"),
    "long words": (
        tokenize(max_characters_per_token=10**9),
        "Expected max_characters_per_token 50",
    ),
    "pad_token": (tokenize(pad_token=3), "Special token pad_token has to be either str"),
    "boundary": (tokenize(sentence_start=["x"]), "Expected a string as sentence_start, got ['x']"),
    "index: list": (index("[]"), "list indices must be integers"),
    "index: empty": (index("{}"), "KeyError: 'weight_map'"),
    "index: deep": (index(DEEP), "maximum recursion depth exceeded"),
}


@pytest.mark.parametrize(("edit", "message"), DAMAGED.values(), ids=DAMAGED.keys())
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_damaged_folder_is_refused_in_a_line(
    folder: Path, edit: Edit, message: str, backend: Backend
) -> None:
    edit(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = embed(folder, backend)
    assert line.startswith("Error: ")
    assert message in line
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_any_floating_point_weights_are_read(folder: Path, dtype: torch.dtype) -> None:
    cast(dtype)(folder)
    assert embed(folder).startswith("Wrote ")


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_a_model_does_not_compute_in_a_dtype_without_fractions(folder: Path, dtype: str) -> None:
    configure(dtype=dtype)(folder)
    with pytest.raises(ValueError, match="not a floating-point dtype"):
        ElmoModel.from_pretrained(folder)


def test_a_tokenizer_may_be_missing(folder: Path) -> None:
    shutil.move(folder / "tokenizer_config.json", folder.parent)
    ElmoModel.from_pretrained(folder)

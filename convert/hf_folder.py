"""Folders of `save_pretrained`: what `ElmoModel.from_pretrained` loads, both ways."""

import copy
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from convert.checkpoint import (
    Checkpoint,
    ConversionError,
    FloatArray,
    Format,
    LazyTensor,
    Sources,
    WriteSettings,
)
from hf_elmo import ElmoConfig

WEIGHTS = "model.safetensors"
WORDS, TARGET_WORDS = "vocab.txt", "target_vocab.txt"
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SAFETENSORS_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def recognises(path: Path) -> bool:
    """Tell a folder of an ElmoModel by its configuration."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == ElmoConfig.model_type


# --- Reading ---


@contextmanager
def open_checkpoint(sources: Sources) -> Iterator[Checkpoint]:
    """Open what `ElmoModel.save_pretrained` or `convert` wrote."""
    folder = sources.checkpoint
    config = ElmoConfig.from_pretrained(folder)
    path = folder / WEIGHTS
    if not path.is_file():
        raise ConversionError(f"{folder}: expected {WEIGHTS}, found none.")
    try:
        file = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ConversionError(f"{path}: expected safetensors, got {error}.") from error
    with file:
        tensors = {
            name.removeprefix("elmo."): _open_tensor(name, file)
            for name in file.keys()  # noqa: SIM118 - no mapping
        }
        yield Checkpoint(config=config, tensors=tensors, files=(path, folder / "config.json"))


def _open_tensor(name: str, file: safe_open) -> LazyTensor:
    stored = file.get_slice(name)

    def read_rows(start: int, stop: int) -> FloatArray:
        rows: torch.Tensor = stored[start:stop]
        return rows.float().numpy()

    return LazyTensor(name, tuple(stored.get_shape()), read_rows)


# --- Writing ---


def write_checkpoint(checkpoint: Checkpoint, path: Path, settings: WriteSettings) -> None:
    """Write a folder for `from_pretrained`."""
    path.mkdir()
    has_softmax = "softmax.weight" in checkpoint.tensors
    config = copy.deepcopy(checkpoint.config)
    config.architectures = ["ElmoForPreTraining" if has_softmax else "ElmoModel"]
    config.dtype = "float32"  # whatever the file's: half precision is slow on CPUs
    config.save_pretrained(path)
    tensors = {
        name if not has_softmax or name.startswith("softmax.") else f"elmo.{name}": tensor
        for name, tensor in checkpoint.tensors.items()
    }
    write_safetensors(path / WEIGHTS, tensors, settings.dtype)
    for name, words in ((WORDS, checkpoint.words), (TARGET_WORDS, checkpoint.target_words)):
        if words is not None:
            text = "".join(f"{word}\n" for word in words)
            (path / name).write_text(text, encoding="utf-8", newline="\n")


def write_safetensors(path: Path, tensors: Mapping[str, LazyTensor], dtype: str) -> None:
    """Write tensors one after the other, so that never more than a few rows are in memory.

    The format: 8 bytes for the length of a JSON header, the header, the numbers
    (https://huggingface.co/docs/safetensors#format).

    Raises:
        ConversionError: If a number is too large for the type.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + prod(tensor.shape) * DTYPES[dtype].itemsize
        header[name] = {
            "dtype": SAFETENSORS_DTYPES[dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            for block in tensor.blocks():
                rows = torch.from_numpy(np.ascontiguousarray(block)).to(DTYPES[dtype])
                if dtype != "float32" and not rows.isfinite().all():
                    raise ConversionError(f"{tensor.source}: has numbers too large for {dtype}.")
                file.write(rows.reshape(-1).view(torch.uint8).numpy().data)


FORMAT = Format(
    name="huggingface",
    description="folder of config.json, model.safetensors and tokenizer, for from_pretrained",
    recognises=recognises,
    open=open_checkpoint,
    write=write_checkpoint,
)

"""Weights of PyTorch programs (ELMoForManyLangs, AllenNLP): their files, order and names."""

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from convert import unpack
from convert.formats import bilm_variables
from convert.formats.bilm_variables import PLAIN, TABLE, Order, Part
from convert.layout import ConversionError, FloatArray, LazyTensor
from hf_elmo import ElmoConfig

# --- Files ---


def read_state_dict(path: Path) -> dict[str, LazyTensor]:
    """List the tensors of a file of `torch.save`, without executing anything in it.

    Files of PyTorch 1.6 and later are mapped into memory; of older ones, all is read at once.

    Raises:
        ConversionError: If the file is broken, or holds anything but tensors by name.
        OSError: If it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        is_zip = file.read(len(unpack.ZIP_START)) == unpack.ZIP_START
    if is_zip:
        _check_is_stored(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # broken bytes lead it anywhere
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConversionError(
            f"{path}: expected tensors that torch.save wrote, and no code; got: {reason}"
        ) from error
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ConversionError(f"{path}: expected tensors by name, got {type(content).__name__}.")
    for name, tensor in content.items():
        if not isinstance(tensor, torch.Tensor) or not _is_plain(tensor):
            raise ConversionError(f"{path}: {name}: expected plain numbers, got {type(tensor)}.")
        # A broken stride can make one number look like a million.
        if tensor.numel() * tensor.element_size() > size:
            raise ConversionError(f"{path}: {name}: expected a tensor within the file.")
    return {
        name: _make_tensor(f"{path.name}: {name}", tensor)
        for name, tensor in content.items()
        if tensor.is_floating_point() and tensor.numel()
    }


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's numbers are all there: not sparse, quantised, nested or left out."""
    return (
        tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and tensor.device.type == "cpu"
    )


def _check_is_stored(path: Path) -> None:
    """Check that nothing is compressed: torch never does, and would unpack any amount."""
    try:
        with zipfile.ZipFile(path) as file:
            entries = file.infolist()
    except unpack.BROKEN as error:
        raise ConversionError(f"{path}: expected a file of torch.save, got: {error}.") from error
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ConversionError(
                f"{path}: expected a file of torch.save, got a zip with a packed {entry.filename}."
            )


def _make_tensor(source: str, tensor: torch.Tensor) -> LazyTensor:
    rows = tensor.detach().reshape(tensor.shape or (1,))

    def read_rows(start: int, stop: int) -> FloatArray:
        return rows[start:stop].to(torch.float32).numpy()

    return LazyTensor(source, tuple(rows.shape), read_rows)


# --- Order and names ---


def _exchange_last_gates(array: FloatArray) -> FloatArray:
    return array.reshape(4, -1, *array.shape[1:])[[0, 1, 3, 2]].reshape(array.shape)


GATES = Order(lambda shape: shape, _exchange_last_gates, _exchange_last_gates)  # i, f, g, o
# These programs' gate is of what is carried, not of the transform: 1 - g = sigmoid(-z).
NEGATED = Order(lambda shape: shape, np.negative, np.negative)


@dataclass(frozen=True)
class Names:
    """How a program names its tensors; {} stands for a number or a direction.

    Attributes:
        characters: The character table.
        character_order: Whether it has our row for "no token".
        convolution: A convolution.
        highway: A highway layer, transform and gate in one.
        projection: The projection of token vectors.
        lstm: A layer of a direction.
        words: The word table, TABLE order; empty = the program has none.
    """

    characters: str
    character_order: Order
    convolution: str
    highway: str
    projection: str
    lstm: str
    words: str = ""


def make_parts(config: ElmoConfig, names: Names) -> Iterator[Part]:
    """List every tensor of the biLM with its place in a program's state dict.

    Both programs' LSTMs always have a projection, and keep their one bias with the state's weight.
    """
    ours, width, size = "token_encoder", config.num_filters, config.projection_size
    if config.word_embedding_size:
        shape: tuple[int, ...] = (config.word_vocab_size - 1, config.word_embedding_size)
        yield Part(f"{ours}.word_embedding.weight", names.words, shape, TABLE)
    if config.char_embedding_size:
        order = names.character_order
        shape = (config.char_vocab_size - (order is TABLE), config.char_embedding_size)
        yield Part(f"{ours}.char_embedding.weight", names.characters, shape, order)
    for i, (length, number) in enumerate(config.char_filters or []):
        shape, theirs = (number, config.char_embedding_size, length), names.convolution.format(i)
        yield Part(f"{ours}.char_convolutions.{i}.weight", f"{theirs}.weight", shape, PLAIN)
        yield Part(f"{ours}.char_convolutions.{i}.bias", f"{theirs}.bias", (number,), PLAIN)
    for k in range(config.num_highway_layers if config.char_embedding_size else 0):
        theirs, halves = names.highway.format(k), ((0, width), (width, 2 * width))
        for name, order, rows in zip(("transform", "gate"), (PLAIN, NEGATED), halves, strict=True):
            part = f"{ours}.highways.{k}.{name}"
            yield Part(f"{part}.weight", f"{theirs}.weight", (2 * width, width), order, rows)
            yield Part(f"{part}.bias", f"{theirs}.bias", (2 * width,), order, rows)
    if config.use_token_projection:
        shape, theirs = (size, config.word_embedding_size + width), names.projection
        yield Part(f"{ours}.projection.weight", f"{theirs}.weight", shape, PLAIN)
        yield Part(f"{ours}.projection.bias", f"{theirs}.bias", (size,), PLAIN)
    for direction in ("forward", "backward"):
        for layer in range(config.num_hidden_layers):
            part, theirs = f"{direction}_lstm.layers.{layer}", names.lstm.format(direction, layer)
            shape = (4 * config.cell_size, size)
            yield Part(f"{part}.input_weight", f"{theirs}.input_linearity.weight", shape, GATES)
            yield Part(f"{part}.state_weight", f"{theirs}.state_linearity.weight", shape, GATES)
            yield Part(f"{part}.bias", f"{theirs}.state_linearity.bias", shape[:1], GATES)
            shape, theirs = (size, config.cell_size), f"{theirs}.state_projection.weight"
            yield Part(f"{part}.projection_weight", theirs, shape, PLAIN)


def guess_options(tensors: Mapping[str, LazyTensor], names: Names, source: Path) -> dict[str, Any]:
    """Make bilm-tf's options for a biLM of which only the tensors are there.

    Raises:
        ConversionError: If there are no LSTMs.
    """
    layers = bilm_variables.numbered(
        f"{names.lstm.format('forward', '{}')}.state_projection.weight", tensors
    )
    convolutions = bilm_variables.numbered(f"{names.convolution}.weight", tensors)
    if not layers or any(len(tensor.shape) < 2 for tensor in (*layers, *convolutions)):
        found = ", ".join(list(tensors)[:10]) or "none"
        raise ConversionError(
            f"{source}: expected LSTMs, with weights {names.lstm.format('forward', 0)}...; "
            f"there are: {found}."
        )
    projection_size, cell_size = layers[0].shape[:2]
    return bilm_variables.guess_options(
        projection_size=projection_size,
        cell_size=cell_size,
        num_layers=len(layers),
        char_embedding_size=convolutions[0].shape[1] if convolutions else 0,
        filters=[(tensor.shape[-1], tensor.shape[0]) for tensor in convolutions],
        num_highways=len(bilm_variables.numbered(f"{names.highway}.weight", tensors)),
    )


def make_config(
    options: Mapping[str, Any], tensors: Mapping[str, LazyTensor], names: Names, **others: Any
) -> ElmoConfig:
    """Describe a biLM by bilm-tf's options and what only the tensors tell.

    Raises:
        ConversionError: If an option is missing, of the wrong type or out of range.
    """
    values: dict[str, Any] = {
        "use_cell_projection": True,
        "use_token_projection": f"{names.projection}.weight" in tensors,
        "forget_bias": 0.0,  # it is in the stored bias
    }
    if names.characters in tensors:
        rows = tensors[names.characters].shape[0]
        values["char_vocab_size"] = rows + (names.character_order is TABLE)
    if names.words in tensors:
        shape = tensors[names.words].shape
        values |= {"word_vocab_size": shape[0] + 1, "word_embedding_size": shape[-1]}
    return bilm_variables.make_config(options, **values, **others)

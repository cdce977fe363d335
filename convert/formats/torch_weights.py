"""Weights of PyTorch programs (ELMoForManyLangs, AllenNLP): their order and names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convert.formats import bilm_options
from convert.formats.stored_tensors import PLAIN, TABLE, Order, Part, numbered
from convert.layout import ConversionError, FloatArray, LazyTensor
from hf_elmo import ElmoConfig


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
    layers = numbered(f"{names.lstm.format('forward', '{}')}.state_projection.weight", tensors)
    convolutions = numbered(f"{names.convolution}.weight", tensors)
    if not layers or any(len(tensor.shape) < 2 for tensor in (*layers, *convolutions)):
        found = ", ".join(list(tensors)[:10]) or "none"
        raise ConversionError(
            f"{source}: expected LSTMs, with weights {names.lstm.format('forward', 0)}...; "
            f"there are: {found}."
        )
    projection_size, cell_size = layers[0].shape[:2]
    return bilm_options.guess_options(
        projection_size=projection_size,
        cell_size=cell_size,
        num_layers=len(layers),
        char_embedding_size=convolutions[0].shape[1] if convolutions else 0,
        filters=[(tensor.shape[-1], tensor.shape[0]) for tensor in convolutions],
        num_highways=len(numbered(f"{names.highway}.weight", tensors)),
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
    return bilm_options.make_config(options, **values, **others)

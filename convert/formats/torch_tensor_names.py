"""Tensor names and order of gates of PyTorch programs (ELMoForManyLangs, AllenNLP)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convert.formats import bilm_options
from convert.formats.tensor_rearrangement import (
    PLAIN,
    TABLE,
    Arrangement,
    Shape,
    StoredTensor,
    list_numbered,
)
from convert.layout import ConversionError, FloatArray, LazyTensor
from hf_elmo import ElmoConfig


def _exchange_last_gates(array: FloatArray) -> FloatArray:
    return array.reshape(4, -1, *array.shape[1:])[[0, 1, 3, 2]].reshape(array.shape)


GATES = Arrangement(lambda shape: shape, _exchange_last_gates, _exchange_last_gates)  # i, f, g, o
# The gate of these programs weights the carried input, not the transform: 1 - g = sigmoid(-z).
NEGATED = Arrangement(lambda shape: shape, np.negative, np.negative)


@dataclass(frozen=True)
class TensorNames:
    """Tensor names of a program; {} is replaced by a number or a direction.

    Attributes:
        characters: Character table.
        character_arrangement: PLAIN if the table includes the padding row, else TABLE.
        convolution: Convolution.
        highway: Highway layer, with transform and gate in one tensor.
        projection: Projection of token vectors.
        lstm: Layer of one direction.
        words: Word table, arranged as TABLE; empty = no word table.
    """

    characters: str
    character_arrangement: Arrangement
    convolution: str
    highway: str
    projection: str
    lstm: str
    words: str = ""


def list_stored_tensors(config: ElmoConfig, names: TensorNames) -> Iterator[StoredTensor]:
    """List all tensors of the biLM with their location in a program's state dict.

    The LSTMs of both programs always have a projection. Their only bias is that of the state.
    """
    ours, width, size = "token_encoder", config.num_filters, config.projection_size
    if config.word_embedding_size:
        shape: Shape = (config.word_vocab_size - 1, config.word_embedding_size)
        yield StoredTensor(f"{ours}.word_embedding.weight", names.words, shape, TABLE)
    if config.char_embedding_size:
        arrangement = names.character_arrangement
        shape = (config.char_vocab_size - (arrangement is TABLE), config.char_embedding_size)
        yield StoredTensor(f"{ours}.char_embedding.weight", names.characters, shape, arrangement)
    for i, (length, number) in enumerate(config.char_filters or []):
        shape, theirs = (number, config.char_embedding_size, length), names.convolution.format(i)
        yield from _list_module(f"{ours}.char_convolutions.{i}", theirs, shape)
    for k in range(config.num_highway_layers if config.char_embedding_size else 0):
        highway, theirs, shape = f"{ours}.highways.{k}", names.highway.format(k), (2 * width, width)
        yield from _list_module(f"{highway}.transform", theirs, shape, PLAIN, (0, width))
        yield from _list_module(f"{highway}.gate", theirs, shape, NEGATED, (width, 2 * width))
    if config.use_token_projection:
        shape = (size, config.word_embedding_size + width)
        yield from _list_module(f"{ours}.projection", names.projection, shape)
    for direction in ("forward", "backward"):
        for layer in range(config.num_hidden_layers):
            ours, theirs = f"{direction}_lstm.layers.{layer}", names.lstm.format(direction, layer)
            inputs, state = f"{theirs}.input_linearity", f"{theirs}.state_linearity"
            shape, projection = (4 * config.cell_size, size), (size, config.cell_size)
            yield StoredTensor(f"{ours}.input_weight", f"{inputs}.weight", shape, GATES)
            yield StoredTensor(f"{ours}.state_weight", f"{state}.weight", shape, GATES)
            yield StoredTensor(f"{ours}.bias", f"{state}.bias", shape[:1], GATES)
            name = f"{theirs}.state_projection.weight"
            yield StoredTensor(f"{ours}.projection_weight", name, projection, PLAIN)


def _list_module(
    ours: str,
    theirs: str,
    shape: Shape,
    arrangement: Arrangement = PLAIN,
    rows: tuple[int, int] | None = None,
) -> Iterator[StoredTensor]:
    yield StoredTensor(f"{ours}.weight", f"{theirs}.weight", shape, arrangement, rows)
    yield StoredTensor(f"{ours}.bias", f"{theirs}.bias", shape[:1], arrangement, rows)


def guess_options(
    tensors: Mapping[str, LazyTensor], names: TensorNames, source: Path
) -> dict[str, Any]:
    """Infer bilm-tf's options from the tensors.

    Raises:
        ConversionError: If there are no LSTMs.
    """
    layers = list_numbered(f"{names.lstm.format('forward', '{}')}.state_projection.weight", tensors)
    convolutions = list_numbered(f"{names.convolution}.weight", tensors)
    if not layers or any(len(tensor.shape) < 2 for tensor in (*layers, *convolutions)):
        found = ", ".join(list(tensors)[:10]) or "none"
        raise ConversionError(
            f"{source}: expected LSTM weights {names.lstm.format('forward', 0)}..., found: {found}."
        )
    projection_size, cell_size = layers[0].shape[:2]
    return bilm_options.guess_options(
        projection_size=projection_size,
        cell_size=cell_size,
        num_layers=len(layers),
        char_embedding_size=convolutions[0].shape[1] if convolutions else 0,
        filters=[(tensor.shape[-1], tensor.shape[0]) for tensor in convolutions],
        num_highways=len(list_numbered(f"{names.highway}.weight", tensors)),
    )


def make_config(
    options: Mapping[str, Any], tensors: Mapping[str, LazyTensor], names: TensorNames, **others: Any
) -> ElmoConfig:
    """Make the configuration of a biLM from bilm-tf's options and the tensors.

    Raises:
        ConversionError: If an option is missing, of the wrong type or out of range.
    """
    values: dict[str, Any] = {
        "use_cell_projection": True,
        "use_token_projection": f"{names.projection}.weight" in tensors,
        "forget_bias": 0.0,  # included in the stored bias
    }
    if names.characters in tensors:
        rows = tensors[names.characters].shape[0]
        values["char_vocab_size"] = rows + (names.character_arrangement is TABLE)
    if names.words in tensors:
        shape = tensors[names.words].shape
        values |= {"word_vocab_size": shape[0] + 1, "word_embedding_size": shape[-1]}
    return bilm_options.make_config(options, **values, **others)

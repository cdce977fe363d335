"""Tensor names and order of gates of PyTorch programs (ELMoForManyLangs, AllenNLP)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convert.formats import bilm_options
from convert.formats.tensor_rearrangement import (
    PLAIN,
    TABLE,
    Arrangement,
    Rule,
    list_numbered,
    reorder_gates,
)
from convert.layout import ConversionError, FloatArray, LazyTensor
from hf_elmo import ElmoConfig


def _exchange_last_gates(array: FloatArray) -> FloatArray:
    return reorder_gates(array, [0, 1, 3, 2])


GATES = Arrangement(lambda shape: shape, _exchange_last_gates, _exchange_last_gates)  # i, f, g, o
# The gate of these programs weights the carried input, not the transform: 1 - g = sigmoid(-z).
NEGATED = Arrangement(lambda shape: shape, np.negative, np.negative)


@dataclass(frozen=True)
class TensorNames:
    """Tensor names in a PyTorch program's files; {} is replaced by a number or a direction.

    Attributes:
        characters: Character table.
        character_arrangement: PLAIN if the table includes the padding row, else TABLE.
        convolution: Convolution.
        highway: Highway layer, with transform and gate in one tensor.
        projection: Projection of token vectors.
        lstm: LSTM layer of one direction.
        words: Word table, arranged as TABLE; empty = no word table.
    """

    characters: str
    character_arrangement: Arrangement
    convolution: str
    highway: str
    projection: str
    lstm: str
    words: str = ""

    def make_rules(self) -> list[Rule]:
        """Make the rules that locate the tensors. LSTMs have one bias, beside the state weights."""
        ours, lstm = "token_encoder", r"(forward|backward)_lstm.layers.(\d+)"
        kind, highway = "(weight|bias)", f"{self.highway}.{{}}"
        return [
            Rule(f"{ours}.word_embedding.weight", self.words, TABLE),
            Rule(f"{ours}.char_embedding.weight", self.characters, self.character_arrangement),
            Rule(rf"{ours}.char_convolutions.(\d+).{kind}", f"{self.convolution}.{{}}", PLAIN),
            Rule(rf"{ours}.highways.(\d+).transform.{kind}", highway, PLAIN, 0),
            Rule(rf"{ours}.highways.(\d+).gate.{kind}", highway, NEGATED, 1),
            Rule(f"{ours}.projection.{kind}", f"{self.projection}.{{}}", PLAIN),
            Rule(f"{lstm}.input_weight", f"{self.lstm}.input_linearity.weight", GATES),
            Rule(f"{lstm}.state_weight", f"{self.lstm}.state_linearity.weight", GATES),
            Rule(f"{lstm}.bias", f"{self.lstm}.state_linearity.bias", GATES),
            Rule(f"{lstm}.projection_weight", f"{self.lstm}.state_projection.weight", PLAIN),
        ]


def guess_options(
    tensors: Mapping[str, LazyTensor], names: TensorNames, source: Path
) -> dict[str, Any]:
    """Infer bilm-tf's options from the tensors."""
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
    """Make the configuration of a biLM from bilm-tf's options and the tensors."""
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

"""PyTorch programs' tensors have their names and order of gates; sizes tell most options."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bilm_tf import make_bilm
from old_checkpoints import allennlp_weights

from convert import ConversionError
from convert.formats.allennlp import NAMES
from convert.formats.tensor_rearrangement import list_stored_tensors
from convert.formats.torch_tensor_names import (
    GATES,
    NEGATED,
    guess_options,
    make_config,
)
from convert.layout import LazyTensor


def list_tensors(**variant: Any) -> dict[str, LazyTensor]:
    return {
        name: LazyTensor(name, tuple(tensor.shape), lambda i, j, rows=tensor: rows[i:j].numpy())
        for name, tensor in allennlp_weights(make_bilm(**variant)).items()
    }


def test_gates_i_f_g_o_become_i_f_o_g_and_back() -> None:
    rows = np.array([["i"], ["f"], ["g"], ["o"]])
    common = GATES.to_common(rows)
    assert common[:, 0].tolist() == ["i", "f", "o", "g"]
    np.testing.assert_array_equal(GATES.to_stored(common), rows)


def test_gates_of_highways_change_their_sign() -> None:
    array = np.array([1.0, -2.0])
    np.testing.assert_array_equal(NEGATED.to_common(array), -array)
    np.testing.assert_array_equal(NEGATED.to_stored(-array), array)


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("num_highways", [0, 2])
def test_sizes_are_read_off_the_tensors(num_layers: int, num_highways: int) -> None:
    tensors = list_tensors(num_layers=num_layers, num_highways=num_highways)
    options = guess_options(tensors, NAMES, Path("weights.th"))
    bilm = make_bilm(num_layers=num_layers, num_highways=num_highways)
    assert options["lstm"]["n_layers"] == num_layers
    assert (options["lstm"]["dim"], options["lstm"]["projection_dim"]) == (6, 4)
    assert options["char_cnn"]["n_highway"] == num_highways
    assert options["char_cnn"]["filters"] == bilm.options["char_cnn"]["filters"]


def test_the_expected_tensors_are_those_of_the_program() -> None:
    tensors = list_tensors()
    options = guess_options(tensors, NAMES, Path("weights.th"))
    stored = list_stored_tensors(make_config(options, tensors, NAMES), NAMES.make_rules())
    shapes = {item.variable: item.variable_shape for item in stored}
    assert shapes == {name: tensor.shape for name, tensor in tensors.items()}


def test_tensors_without_lstms_are_refused() -> None:
    with pytest.raises(ConversionError, match=r"weights.th: expected LSTM weights .*found: none"):
        guess_options({}, NAMES, Path("weights.th"))

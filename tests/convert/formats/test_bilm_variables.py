"""bilm-tf's variables are known by every name that it gave them, and arranged anew exactly."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from bilm_tf import make_bilm

from convert import ConversionError
from convert.formats.bilm_options import make_config
from convert.formats.bilm_variables import (
    CONVOLUTION,
    GATES,
    RULES,
    TRANSPOSED,
    gather_checkpoint,
    read_vocabulary,
    standard_name,
)
from convert.formats.tensor_rearrangement import Arrangement, list_stored_tensors
from convert.layout import LazyTensor
from hf_elmo.language_model.vocabulary import write_words

WORDS = ("<S>", "</S>", "<UNK>", "naïve", "a\u2028b")
STANDARD = "RNN_{}/RNN/MultiRNNCell/Cell{}/LSTMCell/{}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_P_0", STANDARD.format(1, 1, "W_P_0")),
        ("RNN_1/RNN/LSTMCell/B", STANDARD.format(1, 0, "B")),  # one layer
        ("rnn/LSTMCell/kernel", STANDARD.format(0, 0, "W_0")),  # one direction
        (
            "RNN_0/rnn/multi_rnn_cell/cell_1/lstm_cell/projection/kernel",  # a trainer's
            STANDARD.format(0, 1, "W_P_0"),
        ),
        ("RNN_0/RNN/MultiRNNCell/Cell1/rnn/lstm_cell/bias", STANDARD.format(0, 1, "B")),  # a module
        ("CNN/W_cnn_0", "CNN/W_cnn_0"),
        ("RNN_2/RNN/LSTMCell/B", "RNN_2/RNN/LSTMCell/B"),
    ],
)
def test_variables_have_one_standard_name(name: str, expected: str) -> None:
    assert standard_name(name) == expected


@pytest.mark.parametrize(
    ("arrangement", "shape"),
    [
        (TRANSPOSED, (3, 5)),
        (CONVOLUTION, (1, 3, 2, 5)),
        (GATES, (3, 8)),
        (GATES, (8,)),
    ],
)
def test_arrangements_come_back(arrangement: Arrangement, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).normal(size=shape)
    common = arrangement.to_common(array)
    assert arrangement.stored_shape(common.shape) == shape
    np.testing.assert_array_equal(arrangement.to_stored(common), array)


def test_gates_i_j_f_o_become_i_f_o_j() -> None:
    columns = np.repeat([["i", "j", "f", "o"]], 2, axis=0)
    assert GATES.to_common(columns)[:, 0].tolist() == ["i", "f", "o", "j"]


def test_the_expected_variables_are_those_of_bilm_tf() -> None:
    bilm = make_bilm(num_highways=2)
    stored = list(list_stored_tensors(make_config(bilm.options, char_vocab_size=262), RULES))
    shapes = {item.variable: item.variable_shape for item in stored}
    assert shapes == {name: array.shape for name, array in bilm.variables.items()}


def test_options_of_another_kind_of_input_are_refused() -> None:
    bilm = make_bilm(reads_words=True)
    variables = {
        name: LazyTensor(name, array.shape, lambda start, stop, array=array: array[start:stop])
        for name, array in bilm.variables.items()
    }
    error = 'w.hdf5: expected a variable char_embed, as the options have "char_cnn", found: '
    with pytest.raises(ConversionError, match=error):
        gather_checkpoint(make_bilm().options, variables, files=(Path("w.hdf5"),))


def test_words_come_back(tmp_path: Path) -> None:
    write_words(tmp_path / "vocab.txt", WORDS)
    assert read_vocabulary(tmp_path / "vocab.txt", len(WORDS), "the softmax") == WORDS


def test_white_space_and_the_line_that_is_no_word_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"<S>\r\n the \t\n!!!MAXTERMID\nbank")
    assert read_vocabulary(path, 3, "the softmax") == ("<S>", "the", "bank")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"a\nb\n", "vocab.txt: expected 3 words, one per row of the softmax, got 2"),
        (b"a\nb\n\xff\n", "vocab.txt: expected UTF-8 with one word per line, got"),
        (gzip.compress(b"a\nb\n", mtime=0), "compressed, decompress it first"),
    ],
)
def test_other_files_are_refused(data: bytes, error: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(data)
    with pytest.raises(ConversionError, match=error):
        read_vocabulary(tmp_path / "vocab.txt", 3, "the softmax")

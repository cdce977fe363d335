"""Tensors are found under other names, and turned into the common layout by rows."""

import numpy as np
import pytest

from convert import ConversionError
from convert.formats.tensor_rearrangement import (
    PLAIN,
    TABLE,
    Arrangement,
    StoredTensor,
    gather_tensors,
    list_numbered,
)
from convert.layout import LazyTensor

ARRAY = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
TRANSPOSED = Arrangement(lambda shape: shape[::-1], np.transpose, np.transpose)


def make_tensor(array: np.ndarray = ARRAY) -> LazyTensor:
    return LazyTensor("file: x", array.shape, lambda start, stop: array[start:stop])


@pytest.mark.parametrize(
    ("arrangement", "half", "expected"),
    [
        (PLAIN, None, ARRAY),
        (TABLE, None, np.pad(ARRAY, ((1, 0), (0, 0)))),
        (TRANSPOSED, None, ARRAY.T),
        (PLAIN, 1, ARRAY[2:]),
        (TRANSPOSED, 0, ARRAY[:2].T),
        (TRANSPOSED, 1, ARRAY[2:].T),
    ],
)
def test_tensors_are_arranged_whole_and_by_rows(
    arrangement: Arrangement, half: int | None, expected: np.ndarray
) -> None:
    stored = StoredTensor("ours", expected.shape, "theirs", arrangement, half)
    tensor = gather_tensors([stored], {"theirs": make_tensor()}, "file")["ours"]
    assert tensor.shape == expected.shape
    for start in range(len(expected)):
        for stop in range(start + 1, len(expected) + 1):
            np.testing.assert_array_equal(tensor.read_rows(start, stop), expected[start:stop])


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({}, r"file: expected a variable theirs of shape \[4, 3\], found: none"),
        ({"theirs": make_tensor(ARRAY.T)}, r"file: x: expected shape \[4, 3\] .*, got \[3, 4\]"),
        (
            {"theirs": make_tensor(), "other": make_tensor()},
            "file: expected no variables but the 1 that the options ask for, found file: x",
        ),
    ],
)
def test_missing_surplus_and_misshapen_tensors_are_named(
    variables: dict[str, LazyTensor], error: str
) -> None:
    with pytest.raises(ConversionError, match=error):
        gather_tensors([StoredTensor("ours", (4, 3), "theirs", PLAIN)], variables, "file")


def test_numbered_tensors_are_listed_up_to_the_first_gap() -> None:
    tensors = {f"layer_{number}": make_tensor() for number in (0, 1, 3)}
    assert list_numbered("layer_{}", tensors) == [tensors["layer_0"], tensors["layer_1"]]

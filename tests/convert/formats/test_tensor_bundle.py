"""TensorFlow's checkpoint files are read without it, and broken ones are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow_checkpoint import message, write_variables

from convert import ConversionError
from convert.formats import tensor_bundle
from convert.formats.tensor_bundle import read_variables


@pytest.mark.parametrize("dtype", ["<f2", "<f8"])
def test_other_float_types_are_read(dtype: str, tmp_path: Path) -> None:
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    variables = read_variables(write_variables(tmp_path / "model", {"x": array}))
    np.testing.assert_array_equal(variables["x"].read_rows(1, 2), [[3, 4, 5]])
    assert variables["x"].read().dtype == np.float32


def change_entry(
    name: bytes, *fields: tuple[int, int | bytes]
) -> Callable[[dict[bytes, bytes]], None]:
    """Add fields to an entry; of equal ones, the last counts."""

    def change(entries: dict[bytes, bytes]) -> None:
        entries[name] += message(*fields)

    return change


@pytest.mark.parametrize(
    ("problem", "error"),
    [
        ({"header": ()}, "its header is missing"),
        ({"header": ((1, 1), (2, 1))}, "big-endian"),
        ({"compression": 1}, r"uncompressed index, got Snappy"),
        ({"compression": 7}, r"uncompressed index, got method 7"),
        ({"change": change_entry(b"x", (3, 1))}, "file 1 of 1"),
        ({"change": change_entry(b"x", (4, 1))}, "expected at least 17 bytes in m.data-00000"),
        ({"change": change_entry(b"x", (5, 12))}, r"does not match its shape \[4\]"),
        ({"change": change_entry(b"x", (7, b""))}, "x: partitioned variables"),
        ({"change": lambda entries: entries.update({b"x": b"\x0b"})}, "not a protobuf message"),
        ({"change": lambda entries: entries.update({b"x": b"\x0a\x09"})}, "an entry is truncated"),
        ({"change": lambda entries: entries.update({b"x": b"\xff" * 11})}, "a varint is too long"),
        ({"change": lambda entries: entries.update({b"\xff": entries[b"x"]})}, "utf-8"),
    ],
)
def test_broken_index_is_refused(problem: dict[str, Any], error: str, tmp_path: Path) -> None:
    prefix = write_variables(tmp_path / "m", {"x": np.ones(4, np.float32)}, **problem)
    with pytest.raises(ConversionError, match=error):
        read_variables(prefix)


@pytest.mark.parametrize("size", [0, 8, 47, 60])
def test_truncated_index_is_refused(size: int, tmp_path: Path) -> None:
    prefix = write_variables(tmp_path / "m", {"x": np.ones(4, np.float32)})
    index = Path(f"{prefix}.index")
    index.write_bytes(index.read_bytes()[:size])
    with pytest.raises(ConversionError, match="without its footer"):
        read_variables(prefix)


def test_any_changed_byte_of_a_block_is_noticed(tmp_path: Path) -> None:
    prefix = write_variables(tmp_path / "m", {"x": np.ones(4, np.float32)})
    index = Path(f"{prefix}.index")
    whole = index.read_bytes()
    for position in range(len(whole) - 48):
        index.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        try:
            read_variables(prefix)
        except ConversionError:
            continue
        assert position >= len(whole) - 48 - 13  # the meta index, which is not read


def test_huge_index_is_refused_unread(tmp_path: Path) -> None:
    prefix = write_variables(tmp_path / "m", {"x": np.ones(4, np.float32)})
    with Path(f"{prefix}.index").open("ab") as file:
        file.truncate(1 << 40)  # a hole
    with pytest.raises(ConversionError, match=r"expected an index of at most 16777216 bytes"):
        read_variables(prefix)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_fuzzed_index_raises_only_the_documented_error(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    prefix = write_variables(folder / "m", {"a/x": np.ones((2, 3), np.float32), "a/y": np.ones(1)})
    data = bytearray(Path(f"{prefix}.index").read_bytes())
    for position, value in edits:
        data[position % len(data)] = value
    Path(f"{prefix}.index").write_bytes(data)
    # The checksums would stop nearly all of these.
    with mock.patch.object(tensor_bundle, "_check_sum"):
        try:
            variables = read_variables(prefix)
        except ConversionError:
            return
        for variable in variables.values():
            assert variable.read().shape == variable.shape

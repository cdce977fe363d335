"""Read TensorFlow's checkpoint files (version 2, "tensor bundles") without TensorFlow.

`PREFIX.index` is a sorted table in LevelDB's format (https://github.com/google/leveldb, doc/
table_format.md). For each variable it contains a protobuf `BundleEntryProto` (tensorflow/core/
protobuf/tensor_bundle.proto) with the position of the values in `PREFIX.data-00000-of-00001`.
"""

import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from convert.checkpoint import ConversionError, FloatArray

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
FOOTER_SIZE = 48  # two block handles, padding, the magic number
DTYPES = {1: "<f4", 2: "<f8", 19: "<f2"}  # types.proto: DT_FLOAT, DT_DOUBLE, DT_HALF
DTYPE, SHAPE, SHARD, OFFSET, SLICES = 1, 2, 3, 4, 7  # fields of BundleEntryProto


def read_variables(prefix: Path) -> dict[str, FloatArray]:
    """Read the floating-point variables of a checkpoint, whose path has no ".index"."""
    index = prefix.with_name(f"{prefix.name}.index")
    try:
        (_, header), *entries = _read_table(index.read_bytes())
        num_shards = _read_message(header)[1][0]
        values = {key.decode(): _read_message(value) for key, value in entries}
        return {
            name: _read_values(prefix, num_shards, value)
            for name, value in values.items()
            if value[DTYPE][0] in DTYPES
        }
    except (IndexError, KeyError, struct.error, TypeError, ValueError) as error:
        raise ConversionError(f"{index}: expected a complete TensorFlow checkpoint.") from error


def _read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Read the keys and values of a table, in order."""
    if not data.endswith(MAGIC):
        raise ValueError("The footer is missing.")
    numbers = _read_varints(data, len(data) - FOOTER_SIZE)
    _, _, offset, size = (next(numbers)[0] for _ in range(4))  # the first two: an unused index
    for _, handle in _read_block(data, offset, size):
        block = _read_varints(handle, 0)
        yield from _read_block(data, next(block)[0], next(block)[0])


def _read_block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Read the keys and values of a block, and complete each key from the previous one."""
    if data[offset + size]:
        raise ValueError("The index is compressed.")
    (num_restarts,) = struct.unpack_from("<I", data, offset + size - 4)
    end, key = offset + size - 4 - 4 * num_restarts, b""
    while offset < end:
        numbers = _read_varints(data, offset)
        (shared, _), (own, _), (length, start) = (next(numbers) for _ in range(3))
        key = key[:shared] + data[start : start + own]
        offset = start + own + length
        yield key, data[start + own : offset]


def _read_varints(data: bytes, position: int) -> Iterator[tuple[int, int]]:
    """Read varints (7 bits per byte, lowest first), each with the position after it."""
    while True:
        value = shift = 0
        while data[position] >= 0x80:
            value |= (data[position] & 0x7F) << shift
            position, shift = position + 1, shift + 7
        value |= data[position] << shift
        position += 1
        yield value, position


def _read_message(message: bytes) -> dict[int, list[Any]]:
    """Read the fields of a protobuf message: numbers, and bytes of strings or submessages."""
    fields: dict[int, list[Any]] = {number: [] for number in range(8)}
    position = 0
    while position < len(message):
        tag, position = next(_read_varints(message, position))
        kind = tag & 7
        if kind == 5:  # 32 bits: a checksum
            position += 4
            continue
        value, position = next(_read_varints(message, position))
        if kind == 2:
            value, position = message[position : position + value], position + value  # type: ignore[assignment]
        fields[tag >> 3].append(value)
    return fields


def _read_values(prefix: Path, num_shards: int, entry: dict[int, list[Any]]) -> FloatArray:
    if entry[SLICES]:
        raise ValueError("The variable is partitioned.")
    axes = [axis for shape in entry[SHAPE] for axis in _read_message(shape)[2]]
    shape = [(_read_message(axis)[1] or [0])[0] for axis in axes]
    shard, offset = ((entry[field] or [0])[0] for field in (SHARD, OFFSET))
    path = prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}")
    values = np.fromfile(path, DTYPES[entry[DTYPE][0]], prod(shape), offset=offset)
    return values.astype(np.float32).reshape(shape)

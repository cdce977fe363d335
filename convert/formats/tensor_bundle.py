"""Read TensorFlow's checkpoint files (version 2, "tensor bundles") without TensorFlow.

`PREFIX.index` is a sorted table in LevelDB's format (https://github.com/google/leveldb, doc/
table_format.md). For each variable it contains a protobuf `BundleEntryProto` (tensorflow/core/
protobuf/tensor_bundle.proto) with the position of the values in `PREFIX.data-00000-of-00001`.
"""

import struct
from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from convert.layout import ConversionError, FloatArray, LazyTensor

MAGIC = 0xDB4775248B80FB57
FOOTER_SIZE = 48  # two block handles, padding, the magic number
TRAILER_SIZE = 5  # of a block: compression and checksum
SNAPPY = 1
DTYPES: dict[int, np.dtype[np.floating[Any]]] = {  # types.proto: DT_FLOAT, DT_DOUBLE, DT_HALF
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    19: np.dtype("<f2"),
}
READ_SIZE = 1 << 22

# Limits far above any biLM, so that a malicious index is refused early.
MAX_INDEX_SIZE = 1 << 24
MAX_VARIABLES = 10_000
MAX_NAME_SIZE = 4096
MAX_AXES = 8


def read_variables(prefix: Path) -> dict[str, LazyTensor]:
    """List the floating-point variables of a checkpoint by their names.

    A scalar gets the shape (1,). Values stay in the file until they are read. The first read of a
    variable verifies its checksum.

    Args:
        prefix: Path of the checkpoint without ".index" or ".data-...".

    Raises:
        ConversionError: If the checkpoint is broken.
        OSError: If the index is missing, or a file cannot be read.
        ImportError: If google-crc32c is not installed.
    """
    index = prefix.with_name(f"{prefix.name}.index")
    if index.stat().st_size > MAX_INDEX_SIZE:
        raise ConversionError(
            f"{index}: expected an index of at most {MAX_INDEX_SIZE} bytes, "
            f"got {index.stat().st_size}."
        )
    try:
        return _read_index(prefix, index.read_bytes())
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise _broken(f"{index}: {error}") from error
    except ConversionError as error:
        raise ConversionError(f"{index}: {error}") from error


def _broken(what: str) -> ConversionError:
    return ConversionError(
        f"expected the index of a TensorFlow checkpoint, got a broken one: {what}."
    )


def _read_index(prefix: Path, data: bytes) -> dict[str, LazyTensor]:
    entries = _read_table(data)
    name, value = next(entries, (b"", b""))
    numbers, _ = _read_message(value)
    num_shards = numbers.get(1, 0)
    if name or not 0 < num_shards <= MAX_VARIABLES:
        raise _broken("its header is missing")
    if numbers.get(2, 0) != 0:
        raise ConversionError("expected a little-endian checkpoint, got a big-endian one.")
    shards = [
        prefix.with_name(f"{prefix.name}.data-{i:05d}-of-{num_shards:05d}")
        for i in range(num_shards)
    ]
    variables = {}
    for name, value in entries:
        variable = _read_entry(name.decode(), value, shards)
        if variable is not None:
            variables[name.decode()] = variable
        if len(variables) > MAX_VARIABLES:
            raise ConversionError(f"expected a biLM, got more than {MAX_VARIABLES} variables.")
    return variables


# --- The table ---


def _read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Read the keys and values of a table, in order."""
    if len(data) < FOOTER_SIZE or struct.unpack_from("<Q", data, len(data) - 8) != (MAGIC,):
        raise ConversionError(
            "expected the index of a TensorFlow checkpoint, got a file without its footer."
        )
    footer = data[-FOOTER_SIZE:]
    *_, position = _read_handle(footer, 0)  # of the unused meta index
    offset, size, _ = _read_handle(footer, position)
    end = 0
    for _, handle in _read_block(data, offset, size):
        offset, size, _ = _read_handle(handle, 0)
        if offset < end:
            raise _broken("its blocks are out of order")
        end = offset + size
        yield from _read_block(data, offset, size)


def _read_handle(data: bytes, position: int) -> tuple[int, int, int]:
    """Read the offset and size of a block, and the position after its handle."""
    offset, position = _read_varint(data, position)
    size, position = _read_varint(data, position)
    return offset, size, position


def _read_block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Read the keys and values of a block, and complete each key from the previous one."""
    end = offset + size
    if end + TRAILER_SIZE > len(data):
        raise _broken("a block is outside the file")
    compression, checksum = struct.unpack_from("<BI", data, end)
    _check_sum("a block", checksum, _add_crc(0, data[offset : end + 1]))
    if compression:
        kind = "Snappy" if compression == SNAPPY else f"method {compression}"
        raise ConversionError(
            f"expected an uncompressed index, got {kind}. "
            "Save the checkpoint again with TensorFlow's own Saver."
        )
    (num_restarts,) = struct.unpack_from("<I", data, end - 4)
    end -= 4 + 4 * num_restarts
    key = b""
    while offset < end:
        shared, offset = _read_varint(data, offset)
        own, offset = _read_varint(data, offset)
        length, offset = _read_varint(data, offset)
        if shared > len(key) or shared + own > MAX_NAME_SIZE or offset + own + length > end:
            raise _broken("an entry runs over its end")
        key = key[:shared] + data[offset : offset + own]
        offset += own + length
        yield key, data[offset - length : offset]


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a varint (7 bits per byte, lowest first); return it and the next position."""
    value = 0
    for shift in range(0, 64, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise _broken("a varint is too long")


def _check_sum(what: str, masked: int, actual: int) -> None:
    """Compare a checksum with a stored one, which is masked (crc32c.h, `Mask`)."""
    rotated = masked - 0xA282EAD8 & 0xFFFFFFFF
    if rotated >> 17 | (rotated & 0x1FFFF) << 15 != actual:
        raise ConversionError(f"{what} is damaged: its checksum is wrong.")


# --- Variables ---


def _read_message(message: bytes) -> tuple[dict[int, int], dict[int, list[bytes]]]:
    """Read the fields of a protobuf message: numbers, and strings or submessages."""
    numbers: dict[int, int] = {}
    strings: dict[int, list[bytes]] = {}
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        match tag & 7:
            case 0:
                numbers[tag >> 3], position = _read_varint(message, position)
            case 1:
                position += 8
            case 2:
                length, position = _read_varint(message, position)
                strings.setdefault(tag >> 3, []).append(message[position : position + length])
                position += length
            case 5:
                (numbers[tag >> 3],) = struct.unpack_from("<I", message, position)
                position += 4
            case _:
                raise _broken("an entry is not a protobuf message")
    if position != len(message):
        raise _broken("an entry is truncated")
    return numbers, strings


def _read_entry(name: str, value: bytes, shards: list[Path]) -> LazyTensor | None:
    """Read a BundleEntryProto; None = not a floating-point variable."""
    numbers, strings = _read_message(value)
    if numbers.get(1) not in DTYPES:
        return None
    if 7 in strings:
        raise ConversionError(
            f"{name}: partitioned variables are not supported. Save the model without one."
        )
    sizes = [
        _read_message(axis)[0].get(1, 0)
        for shape in strings.get(2, [])
        for axis in _read_message(shape)[1].get(2, [])
    ]
    dtype, shape = DTYPES[numbers[1]], tuple(sizes) or (1,)
    shard, offset, size, checksum = (numbers.get(field, 0) for field in (3, 4, 5, 6))
    if len(shape) > MAX_AXES or prod(shape) * dtype.itemsize != size:
        raise _broken(f"the size of {name} does not match its shape {list(shape[:MAX_AXES])}")
    if not size:
        return None
    if shard >= len(shards):
        raise _broken(f"{name} refers to file {shard} of {len(shards)}")
    path = shards[shard]
    stored = path.stat().st_size if path.is_file() else 0
    if offset + size > stored:
        raise ConversionError(
            f"expected at least {offset + size} bytes in {path.name} for {name}, got {stored}. "
            "Is the file complete?"
        )

    @cache
    def check() -> None:
        _check_sum(f"{path.name}: {name}", checksum, _sum_bytes(path, offset, size))

    def read_rows(start: int, stop: int) -> FloatArray:
        check()
        rows = (stop - start, *shape[1:])
        position = offset + start * (size // shape[0])
        return np.fromfile(path, dtype, prod(rows), offset=position).reshape(rows).astype("f4")

    return LazyTensor(f"{path.name}: {name}", shape, read_rows)


def _sum_bytes(path: Path, offset: int, size: int) -> int:
    crc = 0
    with path.open("rb") as file:
        file.seek(offset)
        for start in range(0, size, READ_SIZE):
            crc = _add_crc(crc, file.read(min(READ_SIZE, size - start)))
    return crc


def _add_crc(crc: int, data: bytes) -> int:
    """Extend a CRC-32C checksum.

    Raises:
        ImportError: If google-crc32c is not installed.
    """
    try:
        import google_crc32c
    except ImportError as error:
        raise ImportError(
            "TensorFlow checkpoints need the package google-crc32c. Run pip install google-crc32c."
        ) from error
    return int(google_crc32c.extend(crc, data))

"""CRC-32C of files, at hundreds of MB/s: the checksum of TensorFlow's checkpoints."""

from collections.abc import Iterable
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Crcs = NDArray[np.uint32]

POLYNOMIAL = 0x82F63B78  # Castagnoli's, its bits reversed (RFC 3720, appendix B.4)
ALL_ONES = 0xFFFFFFFF
PREFIX = b"\x54\x64\x1f\x64"  # brings the register from zero to all ones, where CRC-32C starts
LANE_BITS, CHUNK_BITS = 6, 20  # logarithms of sizes
LANE_SIZE = 1 << LANE_BITS  # bytes that are summed one after the other; all lanes of
CHUNK_SIZE = 1 << CHUNK_BITS  # a chunk are summed at once


def crc32c(blocks: Iterable[bytes], size: int) -> int:
    """Compute the CRC-32C of a byte string.

    A register that is zero stays zero over zeros, so the bytes are padded in front to whole
    chunks; and it is linear, so that the sums of neighbours can be joined afterwards.

    Args:
        blocks: The bytes, of any block sizes.
        size: Number of bytes.
    """
    size += len(PREFIX)
    chunk_size = min(CHUNK_SIZE, max(LANE_SIZE, 1 << (size - 1).bit_length()))
    register = np.zeros(1, np.uint32)
    pending = bytearray(-size % chunk_size) + PREFIX
    for block in chain([b""], blocks):
        pending += block
        whole = len(pending) - len(pending) % chunk_size
        for start in range(0, whole, chunk_size):
            chunk = np.frombuffer(bytes(pending[start : start + chunk_size]), "<u2")
            register = _advance(SHIFTS[CHUNK_BITS], register) ^ _sum_chunk(chunk)
        del pending[:whole]
    return int(register[0]) ^ ALL_ONES


def _sum_chunk(chunk: NDArray[np.uint16]) -> Crcs:
    """Sum the lanes of a chunk, then join neighbours until one is left."""
    columns = np.ascontiguousarray(chunk.reshape(-1, LANE_SIZE // 2).T)
    registers = np.zeros(columns.shape[1], np.uint32)
    for column in columns:
        registers = TABLE[(registers ^ column) & 0xFFFF] ^ (registers >> 16)
    for shift in SHIFTS[LANE_BITS:]:
        if len(registers) == 1:
            break
        registers = _advance(shift, registers[0::2]) ^ registers[1::2]
    return registers


def _advance(shift: Crcs, registers: Crcs) -> Crcs:
    """Move registers on over zeros, a byte of them at a time: `shift` has a table for each."""
    result = shift[0, registers & 0xFF]
    for i in (1, 2, 3):
        result ^= shift[i, registers >> 8 * i & 0xFF]
    return result


def _make_shifts() -> list[Crcs]:
    """Make the tables that move registers over 1, 2, 4, 8, ... zero bytes."""
    columns = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32))
    for _ in range(8):  # a bit of the byte
        columns = np.where(columns & 1, columns >> 1 ^ POLYNOMIAL, columns >> 1)
    shifts: list[Crcs] = []
    for _ in range(CHUNK_BITS + 1):
        shift = np.zeros((4, 256), np.uint32)
        for bit, column in enumerate(columns):
            shift[bit // 8, np.arange(256) >> bit % 8 & 1 == 1] ^= column
        shifts.append(shift)
        columns = _advance(shift, columns)
    return shifts


SHIFTS = _make_shifts()
TABLE = _advance(SHIFTS[1], np.arange(1 << 16, dtype=np.uint32))  # two bytes at a time

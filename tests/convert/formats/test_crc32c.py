"""The checksum of TensorFlow's files, against published sums and a byte-wise one."""

import numpy as np
import pytest

from convert.formats.crc32c import CHUNK_SIZE, crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # RFC 3720, appendix B.4, and the usual check value
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_crc32c_gives_published_sums(data: bytes, expected: int) -> None:
    assert crc32c([data], len(data)) == expected


@pytest.mark.parametrize(
    "size", [1, 60, 61, 10_000, CHUNK_SIZE - 4, CHUNK_SIZE, 2 * CHUNK_SIZE + 5]
)
def test_crc32c_sums_any_blocks_as_byte_by_byte(size: int) -> None:
    data = np.random.default_rng(0).bytes(size)
    blocks = [data[start : start + 700_001] for start in range(0, size, 700_001)]
    assert crc32c(iter(blocks), size) == _sum_bytes(data)


def _sum_bytes(data: bytes) -> int:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # noqa: PLW2901
        table.append(byte)
    register = 0xFFFFFFFF
    for byte in data:
        register = table[(register ^ byte) & 0xFF] ^ register >> 8
    return register ^ 0xFFFFFFFF

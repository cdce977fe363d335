"""Static vectors."""

import gzip
import struct
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from hf_elmo.tasks.static_vectors import read_vectors, scale_vectors

TABLE = torch.tensor([[0.5, -1.0], [2.0, 0.25]])


def write_binary(path: Path, count: int = 2) -> Path:
    rows = b"".join(
        word.encode() + b" " + struct.pack("<2f", *row) + b"\n"
        for word, row in zip(["cat", "Höhe"], TABLE.tolist(), strict=True)
    )
    path.write_bytes(f"{count} 2\n".encode() + rows)
    return path


@pytest.mark.parametrize("header", ["", "2 2\n"])
@pytest.mark.parametrize("blank", [" ", "\t"])
@pytest.mark.parametrize("name", ["vectors.txt", "cc.bin.d2.vec"])
def test_vectors_are_read_from_text(name: str, blank: str, header: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(f"{header}cat{blank}0.5 -1\nHöhe{blank}2 .25\n", encoding="utf-8")
    vectors = read_vectors(path)
    assert vectors.words == ["cat", "Höhe"]
    assert_close(vectors.table, TABLE)


def test_vectors_are_read_from_word2vec_s_binary_files(tmp_path: Path) -> None:
    vectors = read_vectors(write_binary(tmp_path / "vectors.bin"))
    assert vectors.words == ["cat", "Höhe"]
    assert_close(vectors.table, TABLE)


def test_words_with_line_breaks_are_left_out(tmp_path: Path) -> None:
    path = write_binary(tmp_path / "vectors.bin")
    path.write_bytes(path.read_bytes().replace(b"cat", b"c\nt"))
    assert read_vectors(path).words == ["Höhe"]


def test_words_with_spaces_are_read_as_glove_has_them(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("cat 0.5 -1\n. . . 2 .25\n")
    vectors = read_vectors(path)
    assert vectors.words == ["cat", ". . ."]
    assert_close(vectors.table, TABLE)


def test_compressed_vectors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt.gz"
    path.write_bytes(gzip.compress(b"cat 0.5 -1\n"))
    assert read_vectors(path).words == ["cat"]
    path = tmp_path / "vectors.bin.gz"
    path.write_bytes(gzip.compress(write_binary(tmp_path / "vectors.bin").read_bytes()))
    assert read_vectors(path).words == ["cat", "Höhe"]


def test_the_first_vectors_are_read_on_request(tmp_path: Path) -> None:
    vectors = read_vectors(write_binary(tmp_path / "vectors.bin"), max_words=1)
    assert (vectors.words, vectors.table.tolist()) == (["cat"], [[0.5, -1.0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat 1 2\ndog 1\n", "line 2: expected a word and 2 numbers, found 'dog 1'"),
        ("cat 1 2\ndog 1 x\n", "line 2: expected a word and 2 numbers, found 'dog 1 x'"),
        ("", "expected vectors of words, found none"),
        ("cat 1 2\ndog 1 nan\n", "expected finite numbers, found nan in the vector of 'dog'"),
        ("cat 1 -inf\ndog 1 2\n", "expected finite numbers, found -inf in the vector of 'cat'"),
        ("cat 1 2\ndog\n", "line 2: expected a word and 2 numbers, found 'dog'"),
        ("2 3\ncat 1 2\ndog 1 2\n", "line 2: expected a word and 3 numbers, found 'cat 1 2'"),
    ],
)
def test_a_bad_text_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_vectors(path)


def test_a_cut_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 3 vectors, found 2 and an end"):
        read_vectors(write_binary(tmp_path / "vectors.bin", count=3))


def test_a_binary_file_with_more_than_its_first_line_says_is_refused(tmp_path: Path) -> None:
    path = write_binary(tmp_path / "vectors.bin", count=1)
    with pytest.raises(ValueError, match=r"expected the end after 1 binary vectors, found b'H"):
        read_vectors(path)


def test_a_binary_file_without_a_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vectors.bin"
    path.write_bytes(b"cat 0.5\n")
    with pytest.raises(ValueError, match="expected a first line of two numbers"):
        read_vectors(path)


@pytest.mark.parametrize("width", [0, -1, 10**12])
def test_a_binary_file_of_an_impossible_width_is_refused(width: int, tmp_path: Path) -> None:
    path = tmp_path / "vectors.bin"
    path.write_bytes(b"999999999999 %d\ncat " % width)
    with pytest.raises(ValueError, match=f"of width 1 to 65536, found {width}"):
        read_vectors(path)


def test_a_text_file_shorter_than_its_first_line_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("3 2\ncat 0.5 -1\nsat 2 .25\n")
    with pytest.raises(ValueError, match=r"expected 3 vectors \(first line\), found 2 and an end"):
        read_vectors(path)
    assert read_vectors(path, max_words=1).words == ["cat"]


def test_vectors_of_one_number_have_no_first_line(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("cat 0.5\nsat 2\n")
    assert read_vectors(path).words == ["cat", "sat"]


@pytest.mark.parametrize("factor", [1e38, 1e-30])  # their squares are beyond float32
def test_vectors_of_any_size_are_scaled(factor: float) -> None:
    assert_close(scale_vectors(TABLE * factor), TABLE / TABLE.square().mean().sqrt())


def test_vectors_of_zeros_are_refused() -> None:
    with pytest.raises(ValueError, match="with other numbers than 0, got only zeros"):
        scale_vectors(torch.zeros(2, 2))

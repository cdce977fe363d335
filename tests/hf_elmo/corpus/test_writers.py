"""Outputs of parts: what every format holds, and what the disk must hold."""

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from safetensors.numpy import load_file, save_file

from hf_elmo.corpus import writers
from hf_elmo.corpus.arrow import write_tables
from hf_elmo.corpus.output_parts import SENTENCES_KEY, SETTINGS_NAME
from hf_elmo.corpus.writers import write_hdf5, write_npz, write_safetensors

SENTENCES = [["A", "river", ""], [], ["naïve"] * 20]
VECTORS = [
    np.random.default_rng(0).normal(size=(2, len(words), 4)).astype("float32")
    for words in SENTENCES
]


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Two parts, of the first two sentences and the third."""
    folder = tmp_path / "partial"
    folder.mkdir()
    (folder / SETTINGS_NAME).write_text(json.dumps({"layers": "all", "pooling": "none"}))
    paths = [folder / "00000000.safetensors", folder / "00000001.safetensors"]
    for path, numbers in zip(paths, ([0, 1], [2]), strict=True):
        words = json.dumps([SENTENCES[number] for number in numbers]).encode()
        tensors = {str(number): VECTORS[number] for number in numbers}
        save_file(tensors | {SENTENCES_KEY: np.frombuffer(words, np.uint8)}, path)
    return paths


def check(arrays: list[np.ndarray]) -> None:
    for array, expected in zip(arrays, VECTORS, strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("rows", [4096, 7])
def test_hdf5_holds_a_dataset_a_sentence(
    parts: list[Path], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "COPY_ROWS", rows)
    write_hdf5(parts, parts[0].with_name("output"))
    with h5py.File(parts[0].with_name("output")) as file:
        check([file[str(number)][:] for number in range(3)])


@pytest.mark.parametrize("rows", [4096, 7])
def test_npz_holds_an_array_a_sentence(
    parts: list[Path], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "COPY_ROWS", rows)
    write_npz(parts, parts[0].with_name("output.npz"))
    with np.load(parts[0].with_name("output.npz")) as arrays:
        check([arrays[str(number)] for number in range(3)])


@pytest.mark.parametrize("can_link", [True, False])
def test_safetensors_are_the_parts_linked_or_copied(
    parts: list[Path], can_link: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not can_link:
        monkeypatch.setattr(Path, "hardlink_to", fail)
    output = parts[0].with_name("output")
    write_safetensors(parts, output)
    index = json.loads((output / "index.json").read_text())["weight_map"]
    check([load_file(output / index[str(number)])[str(number)] for number in range(3)])
    assert ((output / parts[0].name).stat().st_nlink == 2) == can_link


def test_hdf5_is_not_begun_where_it_does_not_fit(
    parts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3_000))
    output = parts[0].with_name("output")
    with pytest.raises(OSError, match=r"No space left on device \(\d+ bytes needed, 3000 free"):
        write_hdf5(parts, output)
    assert not output.exists()


def test_parquet_has_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    if os.fsencode("\udcff") != b"\xff" or sys.platform in ("win32", "darwin"):
        pytest.skip("such names do not exist here")
    path = tmp_path / "a\udcff.parquet"
    write_tables([pyarrow.table({"id": [1]})], path)
    with path.open("rb") as file:
        assert parquet.read_table(file).to_pydict() == {"id": [1]}

"""Readers of what `embed` wrote, by the suffix of the output."""

import json
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
from pyarrow import parquet
from safetensors.numpy import load_file


def read_hdf5(path: Path) -> Iterator[np.ndarray]:
    with h5py.File(path) as file:
        for number in range(len(file) - 1):
            yield file[str(number)][:]


def read_npz(path: Path) -> Iterator[np.ndarray]:
    with np.load(path) as arrays:
        for number in range(len(arrays.files)):
            yield arrays[str(number)]


def read_safetensors(path: Path) -> Iterator[np.ndarray]:
    index = json.loads((path / "index.json").read_text())["weight_map"]
    for number in range(len(index)):
        yield load_file(path / index[str(number)])[str(number)]


def read_parquet(path: Path) -> Iterator[np.ndarray]:
    table = parquet.read_table(path)
    assert table["id"].to_pylist() == list(range(len(table)))
    layout = json.loads(table.schema.metadata[b"hf_elmo"])
    for numbers in table["vectors"]:
        yield numbers.values.to_numpy().reshape(layout["layers"], -1, layout["width"])


READERS = {
    ".h5": read_hdf5,
    ".npz": read_npz,
    ".parquet": read_parquet,
    ".safetensors": read_safetensors,
}

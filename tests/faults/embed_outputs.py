"""What `embed` wrote, in any of its formats."""

import json
from pathlib import Path

import h5py
import numpy as np
from pyarrow import parquet
from safetensors.numpy import load_file
from spacy.tokens import DocBin
from spacy.vocab import Vocab


def read_vectors(path: Path) -> list[np.ndarray]:
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            return [file[str(number)][:] for number in range(len(file) - 1)]
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return [arrays[str(number)] for number in range(len(arrays.files))]
    if path.suffix == ".safetensors":
        index = json.loads((path / "index.json").read_text())["weight_map"]
        return [load_file(path / index[str(number)])[str(number)] for number in range(len(index))]
    if path.suffix == ".parquet":
        return [np.array(numbers) for numbers in parquet.read_table(path)["vectors"].to_pylist()]
    docs = [
        doc for part in sorted(path.iterdir()) for doc in DocBin().from_disk(part).get_docs(Vocab())
    ]
    return [doc.user_data["._.", "elmo_layers", None, None] for doc in docs]

"""Write the parts of an output as HDF5, npz, parquet or safetensors."""

import errno
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from .arrow import add_vectors, import_pyarrow, write_tables
from .output_parts import SETTINGS_NAME, read_parts, read_rows
from .rows import VECTORS_COLUMN

OutputFormat: TypeAlias = Literal["hdf5", "npz", "parquet", "safetensors"]

SUFFIXES: dict[str, OutputFormat] = {
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".npz": "npz",
    ".parquet": "parquet",
    ".safetensors": "safetensors",
}
FOLDER_INDEX = "index.json"  # file in an output folder
COPY_ROWS = 4096  # rows that are copied at a time
MAX_INT64 = 2**63 - 1
DATASET_BYTES = 1024  # upper estimate of HDF5's overhead per dataset


def write_hdf5(parts: list[Path], output: Path) -> None:
    """Write an HDF5 file in AllenNLP's layout: one dataset per sentence, and an index.

    The key of a dataset is the sentence's number. The index, `sentence_to_index`, is one JSON
    string (allennlp/commands/elmo.py).
    """
    import h5py

    _check_space(parts, output)
    index = []
    with h5py.File(output, "w") as file:
        for row, tensor in read_parts(parts):
            index.append(f'{json.dumps(" ".join(row.words))}: "{row.number}"')
            shape = tensor.get_shape()
            dataset = file.create_dataset(str(row.number), shape, _find_dtype(tensor))
            for place in _list_blocks(shape):
                dataset[place] = tensor[place]
        dataset = file.create_dataset("sentence_to_index", (1,), h5py.string_dtype())
        dataset[0] = f"{{{', '.join(index)}}}"


def _check_space(parts: list[Path], output: Path) -> None:
    """Check in advance that an HDF5 file fits, because HDF5 crashes on a full disk."""
    num_datasets = 0
    for part in parts:
        with safe_open(part, "np") as tensors:
            num_datasets += len(tensors.keys())
    needed = sum(part.stat().st_size for part in parts) + num_datasets * DATASET_BYTES
    free = shutil.disk_usage(output.parent).free
    if needed > free:
        reason = f"{os.strerror(errno.ENOSPC)} ({needed} bytes needed, {free} free)"
        raise OSError(errno.ENOSPC, reason, str(output))


def write_npz(parts: list[Path], output: Path) -> None:
    """Write one array per sentence, named by the sentence's number, to a file for `numpy.load`."""
    with zipfile.ZipFile(output, "w") as archive:
        for row, tensor in read_parts(parts):
            shape = tuple(tensor.get_shape())
            with archive.open(f"{row.number}.npy", "w", force_zip64=True) as file:
                descr = np.lib.format.dtype_to_descr(_find_dtype(tensor))
                header = {"descr": descr, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for place in _list_blocks(shape):
                    file.write(tensor[place].tobytes())


def write_safetensors(parts: list[Path], output: Path) -> None:
    """Write a folder with the parts, and an `index.json` that maps sentences to files."""
    output.mkdir()
    index = {}
    for part in parts:
        _link(part, output / part.name)
        index.update({str(row.number): part.name for row in read_rows(part)})
    (output / FOLDER_INDEX).write_text(json.dumps({"weight_map": index}), encoding="utf-8")


def _link(path: Path, target: Path) -> None:
    """Link a file to a second name, or copy it if linking is not possible."""
    try:
        target.hardlink_to(path)
    except OSError:
        shutil.copy(path, target)


def write_parquet(parts: list[Path], output: Path) -> None:
    """Write a parquet file with the id of each sentence and its vectors as a flat list.

    Without an id column, the id is the number of the sentence. The schema's metadata contains the
    shape, as for `SentenceEmbedder`.
    """
    settings = json.loads((parts[0].parent / SETTINGS_NAME).read_text(encoding="utf-8"))
    id_type = None
    if settings["id_column"] is not None:
        # All parts need the same type. Hashes are often unsigned; pyarrow infers signed integers.
        ids = (row.id for part in parts for row in read_rows(part))
        if any(type(x) is int and x > MAX_INT64 for x in ids):
            id_type = import_pyarrow().uint64()
    write_tables((_make_table(part, settings, id_type) for part in parts), output)


def _make_table(part: Path, settings: dict[str, Any], id_type: Any) -> Any:
    column = settings["id_column"]
    rows, arrays = zip(*((row, _load(tensor)) for row, tensor in read_parts([part])), strict=True)
    ids = [row.number if column is None else row.id for row in rows]
    layers = len(arrays[0]) if settings["layers"] == "all" else 1
    pyarrow = import_pyarrow()
    table = pyarrow.table({column or "id": pyarrow.array(ids, id_type)})
    return add_vectors(
        table, VECTORS_COLUMN, arrays, settings["dtype"], layers, arrays[0].shape[-1]
    )


def _load(tensor: Any) -> "npt.NDArray[Any]":
    vectors = np.empty(tensor.get_shape(), _find_dtype(tensor))
    for place in _list_blocks(vectors.shape):
        vectors[place] = tensor[place]
    return vectors


def _find_dtype(tensor: Any) -> "np.dtype[Any]":
    return np.dtype({"F32": np.float32, "F16": np.float16}[tensor.get_dtype()])


def _list_blocks(shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yield the slices that split an array into blocks of limited size, in memory order."""
    if len(shape) == 1:
        yield (slice(None),)
        return
    *planes, num_rows, _ = shape
    for plane in product(*map(range, planes)):
        for start in range(0, num_rows, COPY_ROWS):
            rows = slice(start, min(start + COPY_ROWS, num_rows))
            yield (*(slice(number, number + 1) for number in plane), rows)


WRITERS: dict[OutputFormat, Callable[[list[Path], Path], None]] = {
    "hdf5": write_hdf5,
    "npz": write_npz,
    "parquet": write_parquet,
    "safetensors": write_safetensors,
}

"""Read and write parquet files and Arrow columns with pyarrow."""

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

LAYOUT_KEY = b"hf_elmo"  # key in the schema's metadata; the value is JSON with `layers`, `width`
MAX_NUMBERS = 2**31 - 1  # per list column, whose offsets have 32 bits

Array = npt.NDArray[Any]


def import_pyarrow() -> ModuleType:
    """Import pyarrow and its parquet module.

    Raises:
        ImportError: If pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "Parquet and Arrow need the package pyarrow. Run pip install pyarrow."
        ) from error
    return pyarrow


def split_words(text: Any) -> list[str]:
    """Return the words of a cell, which is a list, a text with spaces, or null (no words).

    Raises:
        TypeError: If the cell is something else, such as the NaN of pandas for a missing text, or
            a struct.
    """
    if text is None:
        return []
    if isinstance(text, str):
        return text.split()
    if isinstance(text, Mapping | Set) or not isinstance(text, Iterable):
        raise TypeError(
            f"Expected a text or a list of words in each row, got {text!r} "
            f"({type(text).__name__}). If texts are missing, set them to an empty text first."
        )
    return ["" if word is None else word for word in text]


def _is_text(kind: Any) -> bool:
    """Return whether a type of pyarrow is text, in any of its encodings."""
    kind = kind.value_type if str(kind).startswith("dictionary") else kind
    return str(kind) in ("string", "large_string", "string_view")


def read_parquet(
    stream: BinaryIO, name: str, text_column: str, id_column: str | None = None
) -> Iterator[tuple[list[str], int | str | None]]:
    """Read the words and the id of each row of a parquet file.

    Args:
        stream: The file.
        name: File name, for errors.
        text_column: Column of lists of words, or of texts with whitespace between words.
        id_column: Column of integers or strings; None = no ids.

    Raises:
        ValueError: If the file is not parquet, a column is missing or has another type, or an id is
            null.
        ImportError: If pyarrow is not installed.
    """
    pyarrow = import_pyarrow()
    types = pyarrow.types
    try:
        file = pyarrow.parquet.ParquetFile(stream)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"Expected a parquet file, but {name} is not: {error}") from error
    columns = {"text": text_column} | ({} if id_column is None else {"id": id_column})
    for option, column in columns.items():
        if column not in file.schema_arrow.names:
            raise ValueError(
                f"Expected a column {column!r} in {name}, got {', '.join(file.schema_arrow.names)}."
                f" Name the right one with --{option}-column."
            )
        kind = file.schema_arrow.field(column).type
        is_text = _is_text(kind)
        is_list = hasattr(kind, "value_field") and (  # "null": all lists are empty
            _is_text(kind.value_type) or str(kind.value_type) == "null"
        )
        if not is_text and not (is_list if option == "text" else types.is_integer(kind)):
            wanted = "words or lists of words" if option == "text" else "strings or integers"
            raise ValueError(f"Expected {wanted} in column {column!r} of {name}, got {kind}.")
    for batch in file.iter_batches(columns=list(columns.values())):
        texts = batch.column(text_column).to_pylist()
        ids = [None] * len(batch) if id_column is None else batch.column(id_column).to_pylist()
        if id_column is not None and None in ids:
            raise ValueError(f"Expected an id in each row of {name}, got null in {id_column!r}.")
        yield from zip(map(split_words, texts), ids, strict=True)


def is_arrow(batch: Any) -> bool:
    """Return whether a value is a pyarrow record batch or table."""
    return type(batch).__module__.partition(".")[0] == "pyarrow" and hasattr(batch, "schema")


def add_vectors(
    batch: Any, column: str, arrays: list[Array], dtype: str, layers: int, width: int
) -> Any:
    """Add the vectors of each row to a record batch or a table.

    Args:
        batch: The record batch or table.
        column: Name of the new column, which contains flat lists of values.
        arrays: Vectors of each row, shape `(layers, words, width)`; the axis of layers or of words
            may be missing.
        dtype: Data type of the values.
        layers: Number of layers, stored in the schema's metadata, to reshape the lists later.
        width: Width of the vectors, also stored in the metadata.

    Raises:
        ValueError: If there are more values than an Arrow list column can store.
    """
    pyarrow = import_pyarrow()
    sizes = [array.size for array in arrays]
    if sum(sizes) > MAX_NUMBERS:
        raise ValueError(
            f"Expected at most {MAX_NUMBERS} values in a batch, got {sum(sizes)}. Use fewer "
            "sentences at once, fewer layers, or pooling."
        )
    offsets = pyarrow.array(np.cumsum([0, *sizes]), pyarrow.int32())
    numbers = np.concatenate([np.empty(0, dtype), *(array.ravel() for array in arrays)])
    lists = pyarrow.ListArray.from_arrays(offsets, numbers)
    batch = batch.append_column(column, lists)
    layout = json.dumps({"layers": layers, "width": width}).encode()
    return batch.replace_schema_metadata({**(batch.schema.metadata or {}), LAYOUT_KEY: layout})


def write_tables(tables: Iterable[Any], path: Path) -> None:
    """Write a parquet file with one row group per table."""
    pyarrow = import_pyarrow()
    tables = iter(tables)
    first = next(tables)
    with (
        path.open("wb") as file,  # pyarrow itself refuses names that are not UTF-8
        pyarrow.parquet.ParquetWriter(file, first.schema, use_dictionary=False) as writer,
    ):
        for table in chain([first], tables):
            writer.write_table(table)

"""Arrow: parquet in and out, vectors in columns, and what is said without pyarrow."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from hf_elmo.__main__ import app
from hf_elmo.corpus import arrow
from hf_elmo.corpus.arrow import add_vectors, read_parquet, split_words


def make_file(columns: dict[str, Any]) -> io.BytesIO:
    stream = io.BytesIO()
    parquet.write_table(pa.table(columns), stream)
    stream.seek(0)
    return stream


@pytest.mark.parametrize(
    ("cell", "words"),
    [(None, []), ("", []), (" A  bank ", ["A", "bank"]), (["", None, " "], ["", "", " "])],
)
def test_a_cell_is_its_words(cell: Any, words: list[str]) -> None:
    assert split_words(cell) == words


@pytest.mark.parametrize("cell", [{"en": "A house ."}, {"A", "house"}])
def test_a_cell_without_an_order_of_words_is_refused(cell: Any) -> None:
    with pytest.raises(TypeError, match="Expected a text or a list of words in each row"):
        split_words(cell)


def test_a_missing_text_of_pandas_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match=r"got nan \(float\).*set them to an empty text"):
        split_words(float("nan"))


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.string_view())),
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
    ],
)
def test_lists_of_words_are_read(kind: pa.DataType) -> None:
    stream = make_file({"words": pa.array([["A", "bank"], [], None], kind), "id": [3, 1, 2]})
    rows = list(read_parquet(stream, "a.parquet", "words", "id"))
    assert rows == [(["A", "bank"], 3), ([], 1), ([], 2)]


def test_a_column_of_empty_lists_is_read() -> None:
    stream = make_file({"text": pa.array([[], []])})
    assert list(read_parquet(stream, "a.parquet", "text")) == [([], None), ([], None)]


@pytest.mark.parametrize(
    ("columns", "id_column", "message"),
    [
        ({"words": ["a"]}, None, "Expected a column 'text' in a.parquet, got words. .*--text-col"),
        ({"text": ["a"]}, "id", "Expected a column 'id' in a.parquet, got text. .*--id-column"),
        ({"text": [1]}, None, "Expected words or lists of words in column 'text' .* got int64"),
        ({"text": [[1, 2], []]}, None, "Expected words or lists of words .* got list.*int64"),
        ({"text": ["a"], "id": [1.5]}, "id", "Expected strings or integers in .* got double"),
        ({"text": ["a"], "id": ["x"]}, None, None),
        ({"text": ["a", "b"], "id": ["x", None]}, "id", "Expected an id in each row .* got null"),
    ],
)
def test_columns_must_be_there(
    columns: dict[str, Any], id_column: str | None, message: str | None
) -> None:
    rows = read_parquet(make_file(columns), "a.parquet", "text", id_column)
    if message is None:
        assert list(rows) == [(["a"], None)]
    else:
        with pytest.raises(ValueError, match=message):
            list(rows)


def test_a_file_that_is_no_parquet_is_named() -> None:
    with pytest.raises(ValueError, match=r"Expected a parquet file, but a\.parquet is not"):
        list(read_parquet(io.BytesIO(b"text, and more text"), "a.parquet", "text"))


@pytest.mark.parametrize("make", [pa.table, pa.RecordBatch.from_pydict])
def test_vectors_come_back_as_they_were(make: Any) -> None:
    arrays = [np.arange(n * 6, dtype="float16").reshape(2, n, 3) for n in (1, 0, 2)]
    batch = add_vectors(make({"id": [1, 2, 3]}), "v", arrays, "float16", 2, 3)
    assert type(batch) is type(make({"id": [1]}))
    assert batch.schema.metadata[b"hf_elmo"] == b'{"layers": 2, "width": 3}'
    found = pa.table(batch) if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
    for numbers, array in zip(found["v"], arrays, strict=True):
        np.testing.assert_array_equal(numbers.values.to_numpy().reshape(2, -1, 3), array)


def test_metadata_of_a_batch_are_kept() -> None:
    table = pa.table({"id": [1]}).replace_schema_metadata({"source": "wiki"})
    result = add_vectors(table, "v", [np.zeros(3)], "float32", 1, 3)
    assert result.schema.metadata[b"source"] == b"wiki"


def test_an_empty_batch_has_the_column_too() -> None:
    batch = add_vectors(pa.table({"id": pa.array([], pa.int64())}), "v", [], "float32", 1, 3)
    assert batch.schema.field("v").type == pa.list_(pa.float32())


def test_more_numbers_than_a_column_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "MAX_NUMBERS", 5)
    with pytest.raises(ValueError, match="Expected at most 5 values in a batch, got 6"):
        add_vectors(pa.table({"id": [1]}), "v", [np.zeros((2, 3))], "float64", 1, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["text.txt", "vectors.npz"], "Wrote vectors.npz."),
        (["text.txt", "vectors.parquet"], "Error: Parquet and Arrow need the package pyarrow"),
        (["a.parquet", "vectors.npz"], "Error: Parquet and Arrow need the package pyarrow"),
    ],
)
def test_pyarrow_is_needed_only_where_it_is_used(
    arguments: list[str], message: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyarrow", "pyspark", "gensim"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.chdir(tiny_folder.parent)
    Path("text.txt").write_text("A bank\n")
    Path("a.parquet").touch()
    result = CliRunner().invoke(app, ["embed", *arguments, "--model", str(tiny_folder)])
    told = " ".join(result.stderr.split())
    assert message in told
    if "Error" in message:
        assert "Run pip install" in told

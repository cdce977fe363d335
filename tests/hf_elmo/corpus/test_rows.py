"""Rows: numbered sentences from files of any kind, and the shares of them."""

import io
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from hf_elmo.corpus.output_parts import cut_blocks
from hf_elmo.corpus.rows import Row, Rows, Settings


def write_parquet(path: Path, **columns: list[Any]) -> None:
    parquet.write_table(pa.table(columns), path)


def test_files_of_a_pattern_are_numbered_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n")
    write_parquet(tmp_path / "b.parquet", text=["two words"])
    rows = Rows(tmp_path / "*", Settings())
    assert list(rows) == [Row(0, ["one"]), Row(1, []), Row(2, ["two", "words"])]


def test_rows_have_the_ids_of_their_column(tmp_path: Path) -> None:
    write_parquet(tmp_path / "b.parquet", name=["x", "y"], words=[["one"], ["", " "]])
    rows = Rows(tmp_path / "b.parquet", Settings(text_column="words", id_column="name"))
    assert list(rows) == [Row(0, ["one"], "x"), Row(1, ["", " "], "y")]


@pytest.mark.parametrize("name", ["b.parquet", "B.PARQUET"])
def test_parquet_has_words_and_no_raw_text(name: str, tmp_path: Path) -> None:
    write_parquet(tmp_path / name, text=["two words"])
    assert list(Rows(tmp_path / name, Settings())) == [Row(0, ["two", "words"])]
    with pytest.raises(ValueError, match=f"text files with --input-format raw, got .*{name}"):
        Rows(tmp_path / name, Settings(input_format="raw"))


def test_addresses_are_read(tmp_path: Path) -> None:
    with fsspec.open("memory://corpus/a.txt", "wb") as file:
        file.write(b"in memory\n")
    (tmp_path / "b.txt").write_text("on disk\n")
    assert list(Rows("memory://corpus/*.txt", Settings())) == [Row(0, ["in", "memory"])]
    assert list(Rows(f"file://{tmp_path}/b.txt", Settings())) == [Row(0, ["on", "disk"])]


def test_a_stream_is_read() -> None:
    rows = Rows(io.BytesIO(b"A bank\n"), Settings())
    assert rows.num_bytes is None
    assert list(rows) == [Row(0, ["A", "bank"])]


def test_the_position_is_what_has_been_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("three\n")
    rows = Rows(str(tmp_path / "*.txt"), Settings())
    positions = [rows.position for _ in rows]
    assert positions == sorted(positions)
    assert rows.position == rows.num_bytes == 14


@pytest.mark.parametrize("num_shards", [1, 2, 3])
def test_every_row_is_in_one_shard_whatever_its_batches(
    tmp_path: Path, num_shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_elmo.corpus.output_parts.SHARED_WORDS", 12)
    (tmp_path / "a.txt").write_text("".join(f"{number} words\n" for number in range(20)))
    settings = [
        Settings(shard=f"{n}/{num_shards}", max_batch_tokens=n) for n in range(1, num_shards + 1)
    ]
    shares = [
        [row for block in cut_blocks(Rows(tmp_path / "a.txt", s)) for row in block]
        for s in settings
    ]
    whole = list(Rows(tmp_path / "a.txt", Settings()))
    assert all(len(share) >= 6 for share in shares)
    assert sorted(row for share in shares for row in share) == whole


def test_shards_with_ids_read_their_own_files_only(tmp_path: Path) -> None:
    for name in "abc":
        write_parquet(tmp_path / f"{name}.parquet", id=[name], text=[name])
    pattern = str(tmp_path / "*.parquet")
    found = [Rows(pattern, Settings(id_column="id", shard=f"{n}/2")).files for n in (1, 2)]
    assert [[Path(file).stem for file in files] for files in found] == [["a", "c"], ["b"]]
    rows = Rows(pattern, Settings(id_column="id", shard="2/2"))
    assert list(cut_blocks(rows)) == [[Row(0, ["b"], "b")]]


def test_as_many_files_with_ids_as_shards_are_shared(tmp_path: Path) -> None:
    for name in "ab":
        write_parquet(tmp_path / f"{name}.parquet", id=[name], text=[name])
    rows = Rows(str(tmp_path / "*.parquet"), Settings(id_column="id", shard="2/2"))
    assert [Path(file).stem for file in rows.files] == ["b"]


@pytest.mark.parametrize("id_column", ["id", None])
def test_shards_do_not_read_the_outputs_of_others(tmp_path: Path, id_column: str | None) -> None:
    for name in ("a", "b", "all-00001-of-00002"):
        write_parquet(tmp_path / f"{name}.parquet", id=[name], text=[name])
    pattern, settings = str(tmp_path / "*.parquet"), Settings(id_column=id_column, shard="2/2")
    with pytest.warns(UserWarning, match="Not reading outputs of .*all-00001-of-00002.parquet"):
        rows = Rows(pattern, settings, tmp_path / "all-00002-of-00002.parquet")
    assert [Path(file).stem for file in rows.files] == (["b"] if id_column else ["a", "b"])


def test_json_lines_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(
        ValueError, match=r"Expected text, got .*a.jsonl. Its name is that of a dat"
    ):
        Rows(str(tmp_path / "*"), Settings())


def test_the_parts_of_an_output_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "a.npz.partial").mkdir()
    (tmp_path / "a.npz.partial" / "settings.json").write_text("{}")
    with pytest.warns(UserWarning, match="Not reading outputs of this command: .*settings.json"):
        rows = Rows(str(tmp_path / "**"), Settings(), tmp_path / "a.npz")
    assert list(rows) == [Row(0, ["one"])]
    with pytest.raises(FileNotFoundError, match="found only outputs of this command"):
        Rows(str(tmp_path / "*.partial" / "*"), Settings(), tmp_path / "a.npz")


def test_ids_are_of_one_type(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", id=[1], text=["one"])
    write_parquet(tmp_path / "b.parquet", id=["2"], text=["two"])
    rows = Rows(str(tmp_path / "*.parquet"), Settings(id_column="id"))
    with pytest.raises(ValueError, match=r"one type in all files, int as in .*a.parquet, got '2'"):
        list(rows)


@pytest.mark.parametrize("column", ["id_column", "text_column"])
def test_a_named_column_needs_parquet_files(tmp_path: Path, column: str) -> None:
    (tmp_path / "a.txt").touch()
    for source in (tmp_path / "a.txt", io.BytesIO()):
        with pytest.raises(ValueError, match="Expected parquet files"):
            Rows(source, Settings(**{column: "words"}))


@pytest.mark.parametrize("source", ["absent.txt", "no/*.txt", "memory://absent", "memory://no/*"])
def test_there_must_be_files(source: str) -> None:
    with pytest.raises(FileNotFoundError, match="Expected files to read, found none at"):
        Rows(source, Settings())


def test_ids_do_not_take_the_column_of_the_vectors() -> None:
    with pytest.raises(ValueError, match="Expected another id column than 'vectors'"):
        Settings(id_column="vectors")

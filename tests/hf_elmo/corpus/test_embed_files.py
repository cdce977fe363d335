"""Files of text to files of vectors: every format, nothing lost by an interruption."""

import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import torch
from embed_outputs import READERS
from pyarrow import parquet
from typer.testing import CliRunner

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.__main__ import app
from hf_elmo.corpus import embed_files, output_parts, writers
from hf_elmo.corpus.embed_files import embed_file
from hf_elmo.corpus.rows import Settings
from hf_elmo.inference.embedding import embed

tokenizer = ElmoTokenizer()
SENTENCES = [
    ["The", "bank", "raised", "its", "rates", "."],
    [],
    ["A", "river", "bank"],
    ["naïve", "\N{SNAKE}", "</S>"],
    [f"word{number}" for number in range(100)],
    ["Hello"],
    ["A", "river", "bank"],
]
SETTINGS = Settings(max_batch_tokens=4)  # the long sentence comes in pieces
OUTPUTS = [f"vectors{suffix}" for suffix in READERS]
NUM_PARTS = 4  # of sentences 0 to 2, 3, 4, 5 and 6


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(" ".join(words) + "\n" for words in SENTENCES))
    return path


def check(path: Path, model: ElmoModel, **options: Any) -> None:
    results = list(READERS[path.suffix](path))
    expected = list(embed(SENTENCES, model, tokenizer, **{"layers": "all", **options}))
    assert len(results) == len(SENTENCES)
    for result, vectors in zip(results, expected, strict=True):
        assert result.dtype == vectors.dtype
        assert path.suffix == ".parquet" or result.shape == vectors.shape
        # Parquet has an axis of layers always, and of words.
        np.testing.assert_allclose(result.reshape(vectors.shape), vectors, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layers": "top"},
        {"layers": "mean", "dtype": "float16"},
        {"layers": "mix", "pooling": "mean"},
    ],
)
def test_every_format_holds_what_embed_gives(
    tiny_model: ElmoModel, text: Path, name: str, options: dict[str, Any]
) -> None:
    output = text.with_name(name)
    embed_file(text, output, tiny_model, tokenizer, Settings(max_batch_tokens=4, **options))
    check(output, tiny_model, **options)
    assert not output.with_name(name + ".partial").exists()


def test_all_layers_are_pooled(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    embed_file(text, output, tiny_model, tokenizer, Settings(pooling="max"))
    check(output, tiny_model, pooling="max")


def test_all_layers_are_pooled_in_parquet(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.parquet")
    embed_file(text, output, tiny_model, tokenizer, Settings(pooling="mean", dtype="float16"))
    check(output, tiny_model, pooling="mean", dtype="float16")


def test_hdf5_is_readable_as_allennlps(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.hdf5")
    embed_file(text, output, tiny_model, tokenizer, SETTINGS)
    with h5py.File(output) as file:
        index = json.loads(file["sentence_to_index"][0])
        assert index["The bank raised its rates ."] == "0"
        assert index["A river bank"] == "6"  # the last of equal sentences
        assert index["naïve \N{SNAKE} </S>"] == "3"
        assert file[index["Hello"]].shape == (3, 1, 16)


def stop_at(function: Callable[..., Any], calls: int, stop: Callable[[], None]) -> Any:
    """Let a function be called some times, then stop."""

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls -= 1
        if calls < 0:
            stop()
        return function(*args, **kwargs)

    return call


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_in_fork(*targets: Callable[[], None], timeout: float = 60) -> list[int | None]:
    """Run functions in processes of their own; give the exit codes."""

    def run(target: Callable[[], None]) -> None:
        torch.set_num_threads(1)  # others did not survive the fork
        target()

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=run, args=(target,)) for target in targets]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout)
        process.kill()
    return [process.exitcode for process in processes]


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize(
    ("place", "calls", "num_parts"),
    [("os.fsync", 2, 2), ("Path.replace", 3, 2), ("read_rows", 2, 4), ("delete_folder", 0, 4)],
)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_killed_run_goes_on_without_computing_anything_again(
    tiny_model: ElmoModel,
    text: Path,
    name: str,
    place: str,
    calls: int,
    num_parts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = text.with_name(name)

    def run_until_killed() -> None:
        owner, _, attribute = place.rpartition(".")
        targets = {"os": [os], "Path": [Path]}.get(owner, [output_parts, writers, embed_files])
        for target in targets:
            if hasattr(target, attribute):
                stop = stop_at(getattr(target, attribute), calls, kill)
                monkeypatch.setattr(target, attribute, stop)
        embed_file(text, output, tiny_model, tokenizer, SETTINGS)

    assert run_in_fork(run_until_killed) == [-signal.SIGKILL]
    if place == "delete_folder":  # the output is there, and so are the parts
        check(output, tiny_model)
    else:
        assert not output.exists()
    done = list(output.with_name(name + ".partial").glob("*.safetensors"))
    assert len(done) == num_parts
    computed: list[int] = []
    embed_pieces = output_parts.embed_pieces
    monkeypatch.setattr(
        output_parts,
        "embed_pieces",
        lambda block, *a, **k: computed.append(1) or embed_pieces(block, *a, **k),
    )
    embed_file(text, output, tiny_model, tokenizer, SETTINGS)
    check(output, tiny_model)
    assert len(computed) == NUM_PARTS - num_parts
    assert not list(output.parent.glob("vectors.*.*"))


def finish_but_for_tidying_up(model: ElmoModel, text: Path, output: Path) -> None:
    """Leave a run that was killed when its output was in its place."""

    def run_until_killed() -> None:
        shutil.rmtree = stop_at(shutil.rmtree, 0, kill)
        embed_file(text, output, model, tokenizer, SETTINGS)

    assert run_in_fork(run_until_killed) == [-signal.SIGKILL]


@pytest.mark.parametrize("what", ["text", "settings", "model"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_finished_output_is_not_taken_for_that_of_another_run(
    tiny_model: ElmoModel, text: Path, what: str
) -> None:
    output = text.with_name("vectors.h5")
    finish_but_for_tidying_up(tiny_model, text, output)
    settings = Settings(max_batch_tokens=5) if what == "settings" else SETTINGS
    if what == "text":
        text.write_text(text.read_text() + "more\n")
    if what == "model":
        with torch.no_grad():
            tiny_model.token_encoder.projection.bias[0] += 1
    with pytest.raises(FileExistsError, match="exists"):
        embed_file(text, output, tiny_model, tokenizer, settings)
    assert output.exists()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_finished_output_is_overwritten_when_asked(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    finish_but_for_tidying_up(tiny_model, text, output)
    (output.with_name("vectors.h5.partial") / "settings.json").unlink()
    embed_file(
        text,
        output,
        tiny_model,
        tokenizer,
        Settings(layers="top", max_batch_tokens=4),
        overwrite=True,
    )
    check(output, tiny_model, layers="top")
    assert not list(output.parent.glob("vectors.*.*"))


def test_a_file_with_the_name_of_the_receipt_is_kept(tiny_model: ElmoModel, text: Path) -> None:
    mine = text.with_name("vectors.h5.finished")
    mine.write_text("my notes")
    with pytest.raises(FileExistsError, match=r"vectors\.h5\.finished would be lost"):
        embed_file(text, text.with_name("vectors.h5"), tiny_model, tokenizer, SETTINGS)
    assert mine.read_text() == "my notes"


@pytest.mark.parametrize(
    "names", [["index.json"], ["train.npz"], ["index.json", "00000000.safetensors", "NOTES.md"]]
)
def test_a_folder_with_files_of_others_is_not_overwritten(
    tiny_model: ElmoModel, text: Path, names: list[str]
) -> None:
    output = text.with_name("mine.safetensors")
    output.mkdir()
    for name in names:
        (output / name).write_text("x")
    with pytest.raises(FileExistsError, match="which is not part of an output"):
        embed_file(text, output, tiny_model, tokenizer, SETTINGS, overwrite=True)
    assert sorted(path.name for path in output.iterdir()) == sorted(names)


def test_only_an_output_is_overwritten(tiny_model: ElmoModel, text: Path) -> None:
    folder = text.with_name("mine")
    folder.mkdir()
    (folder / "thesis.txt").write_text("x")
    for output, message in ((folder, r"contains thesis\.txt, which"), (text, "is the input")):
        with pytest.raises(FileExistsError, match=message):
            embed_file(
                text,
                output,
                tiny_model,
                tokenizer,
                SETTINGS,
                output_format="hdf5",
                overwrite=True,
            )
    assert (folder / "thesis.txt").exists()
    assert text.read_text().startswith("The bank")
    for overwrite in (False, True):
        output = text.with_name("a.safetensors")
        embed_file(text, output, tiny_model, tokenizer, SETTINGS, overwrite=overwrite)


def test_an_output_that_the_pattern_matches_is_not_overwritten(
    tiny_model: ElmoModel, tmp_path: Path
) -> None:
    output = tmp_path / "v-00001-of-00002.parquet"
    for path in (tmp_path / "a.parquet", output):
        parquet.write_table(pa.table({"text": ["A bank"]}), path)
    before = output.read_bytes()
    with (
        pytest.warns(UserWarning, match="Not reading outputs of this command"),
        pytest.raises(FileExistsError, match="is the input"),
    ):
        embed_file(
            str(tmp_path / "*.parquet"),
            output,
            tiny_model,
            tokenizer,
            Settings(shard="1/2"),
            overwrite=True,
        )
    assert output.read_bytes() == before


def test_an_old_output_is_not_taken_for_the_one_that_was_to_replace_it(
    tiny_model: ElmoModel, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(path: Path) -> None:
        if path.name == "replaced":  # when the new output is complete, but not in its place
            raise InterruptedError

    output = text.with_name("vectors.h5")
    old = Settings(layers="top", max_batch_tokens=4)
    embed_file(text, output, tiny_model, tokenizer, old)
    with monkeypatch.context() as killed:
        killed.setattr(embed_files, "_delete", stop)
        with pytest.raises(InterruptedError):
            embed_file(text, output, tiny_model, tokenizer, SETTINGS, overwrite=True)
    with pytest.raises(FileExistsError, match=r"exists\. Use another name"):
        embed_file(text, output, tiny_model, tokenizer, SETTINGS)
    embed_file(text, output, tiny_model, tokenizer, SETTINGS, overwrite=True)
    check(output, tiny_model)


def test_a_folder_replaces_a_file(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors")
    for kind in ("hdf5", "safetensors"):
        embed_file(
            text, output, tiny_model, tokenizer, SETTINGS, output_format=kind, overwrite=True
        )
    assert (output / "index.json").is_file()
    assert sorted(path.name for path in text.parent.iterdir()) == ["text.txt", "vectors"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_and_nothing_is_lost(
    number: int,
    tiny_model: ElmoModel,
    tiny_folder: Path,
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fill_disk() -> None:
        raise OSError(number, os.strerror(number))

    output = text.with_name("vectors.h5")
    command = [
        "embed",
        str(text),
        str(output),
        "--model",
        str(tiny_folder),
        "--max-batch-tokens",
        "4",
    ]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", stop_at(os.fsync, 3, fill_disk))
        result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert os.strerror(number) in result.output
    assert "Complete parts are kept" in result.output
    names = {path.name for path in output.with_name("vectors.h5.partial").iterdir()}
    assert names == {f"0000000{number}.safetensors" for number in range(3)} | {"settings.json"}
    assert CliRunner().invoke(app, command).exit_code == 0
    check(output, tiny_model)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_failed_write_of_the_output_leaves_only_its_parts(
    name: str, tiny_model: ElmoModel, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    output = text.with_name(name)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", stop_at(os.fsync, NUM_PARTS, fill_disk))
        with pytest.raises(OSError, match="No space left"):
            embed_file(text, output, tiny_model, tokenizer, SETTINGS)
    names = sorted(path.name for path in output.with_name(f"{name}.partial").iterdir())
    parts = [f"0000000{number}.safetensors" for number in range(NUM_PARTS)]
    assert names == [*parts, "settings.json"]
    embed_file(text, output, tiny_model, tokenizer, SETTINGS)
    check(output, tiny_model)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_shard_keeps_the_numbers_of_its_sentences(
    tiny_model: ElmoModel, text: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_elmo.corpus.output_parts.SHARED_WORDS", 16)
    output = text.with_name(name)
    settings = Settings(max_batch_tokens=4, shard="1/3", layers="top")
    embed_file(text, output, tiny_model, tokenizer, settings)  # the first part and the fourth
    if name == "vectors.h5":
        with h5py.File(output) as file:
            assert sorted(file) == [*"01256", "sentence_to_index"]
    elif name == "vectors.npz":
        with np.load(output) as arrays:
            assert arrays.files == [*"01256"]
    elif name == "vectors.parquet":
        assert parquet.read_table(output)["id"].to_pylist() == [0, 1, 2, 5, 6]
    else:
        assert list(json.loads((output / "index.json").read_text())["weight_map"]) == [*"01256"]


def test_ids_go_into_parquet_only(tiny_model: ElmoModel, tmp_path: Path) -> None:
    source = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"id": ["x", "y"], "text": ["A bank", ""]}), source)
    settings = Settings(id_column="id")
    with pytest.raises(ValueError, match=r"Expected a parquet output with an id column, got npz"):
        embed_file(source, tmp_path / "v.npz", tiny_model, tokenizer, settings)
    embed_file(source, tmp_path / "v.parquet", tiny_model, tokenizer, settings)
    assert parquet.read_table(tmp_path / "v.parquet")["id"].to_pylist() == ["x", "y"]


def test_ids_may_be_unsigned_64_bit_hashes(
    tiny_model: ElmoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_elmo.corpus.output_parts.PART_BATCHES", 1)
    ids = [1, 2**63 + 5]  # in two parts
    source = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"id": pa.array(ids, pa.uint64()), "text": ["A", "b"]}), source)
    settings = Settings(id_column="id", pooling="mean", max_batch_tokens=1)
    embed_file(source, tmp_path / "v.parquet", tiny_model, tokenizer, settings)
    assert parquet.read_table(tmp_path / "v.parquet")["id"].to_pylist() == ids


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_million_words_in_a_sentence_take_less_than_500_megabytes(
    tiny_model: ElmoModel, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"word{number * number % 50_021}" for number in range(1_000_000)))

    def work() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        embed_file(text, tmp_path / "vectors.h5", tiny_model, tokenizer, Settings())
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert after - before < 500 * 1024

    assert run_in_fork(work, timeout=3600) == [0]
    with h5py.File(tmp_path / "vectors.h5") as file:
        assert file["0"].shape == (3, 1_000_000, 16)


def test_a_device_is_not_replaced(text: Path, tiny_model: ElmoModel, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    for output in (tmp_path / "pipe.npz", Path("/dev/stdout")):
        with pytest.raises(FileExistsError, match=f"a file or folder, got the device {output}"):
            embed_file(
                text,
                output,
                tiny_model,
                tokenizer,
                SETTINGS,
                output_format="npz",
                overwrite=True,
            )
    assert (tmp_path / "pipe.npz").is_fifo()


@pytest.mark.parametrize("name", ["vectors.npz", "vectors.safetensors"])
@pytest.mark.parametrize("exists", [False, True])
def test_a_symbolic_link_is_kept(
    name: str, exists: bool, text: Path, tiny_model: ElmoModel, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    real, link = tmp_path / "disk" / name, tmp_path / name
    link.symlink_to(real)
    if exists:
        text.with_name("old.txt").write_text("a b\n")
        embed_file(text.with_name("old.txt"), real, tiny_model, tokenizer, SETTINGS)
        with pytest.raises(FileExistsError, match="exists"):
            embed_file(text, link, tiny_model, tokenizer, SETTINGS)
    embed_file(text, link, tiny_model, tokenizer, SETTINGS, overwrite=exists)
    assert link.is_symlink()
    embed_file(text, tmp_path / f"direct-{name}", tiny_model, tokenizer, SETTINGS)
    new, direct = real, tmp_path / f"direct-{name}"
    if real.is_dir():
        new, direct = sorted(new.glob("*.safetensors"))[0], sorted(direct.glob("*.safetensors"))[0]
    assert new.read_bytes() == direct.read_bytes()
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == [name]

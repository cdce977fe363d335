"""Files of text to files of vectors: every format, nothing lost by an interruption."""

import errno
import io
import json
import multiprocessing
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from spacy.tokens import DocBin
from spacy.vocab import Vocab
from torch import distributed
from typer.testing import CliRunner

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.__main__ import app
from hf_elmo.corpus import files
from hf_elmo.corpus.embedding import embed
from hf_elmo.corpus.files import Settings, embed_file, read_sentences

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
SETTINGS = Settings(batch_tokens=4)  # the long sentence comes in pieces
NUM_PARTS = 4  # of sentences 0 and 1, 2 and 3, 4, 5 and 6


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(" ".join(words) + "\n" for words in SENTENCES))
    return path


@pytest.fixture
def model_folder(tiny_model: ElmoModel, tmp_path: Path) -> Path:
    tiny_model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


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


def read_docbin(path: Path) -> Iterator[np.ndarray]:
    for part in sorted(path.iterdir()):
        for doc in DocBin().from_disk(part).get_docs(Vocab()):
            ((name, vectors),) = doc.user_data.items()
            if name != "elmo_pooled":
                assert vectors.shape[-2] == len(doc)
            assert (name == "elmo_layers") == (vectors.ndim == 3)
            yield vectors


OUTPUTS = {
    "vectors.h5": read_hdf5,
    "vectors.npz": read_npz,
    "vectors.safetensors": read_safetensors,
    "vectors.spacy": read_docbin,
}


def check(path: Path, model: ElmoModel, **options: Any) -> None:
    results = list(OUTPUTS[path.name](path))
    expected = list(embed(SENTENCES, model, tokenizer, **{"layers": "all", **options}))
    assert len(results) == len(SENTENCES)
    for result, vectors in zip(results, expected, strict=True):
        assert result.dtype == vectors.dtype
        np.testing.assert_allclose(result, vectors, rtol=0, atol=1e-5)


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
    embed_file(text, output, tiny_model, tokenizer, Settings(batch_tokens=4, **options))
    check(output, tiny_model, **options)
    assert not output.with_name(name + ".partial").exists()


def test_all_layers_are_pooled(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    embed_file(text, output, tiny_model, tokenizer, Settings(pooling="max"))
    check(output, tiny_model, pooling="max")


def test_hdf5_is_readable_as_allennlps(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.hdf5")
    embed_file(text, output, tiny_model, tokenizer, SETTINGS)
    with h5py.File(output) as file:
        index = json.loads(file["sentence_to_index"][0])
        assert index["The bank raised its rates ."] == "0"
        assert index["A river bank"] == "6"  # the last of equal sentences
        assert index["naïve \N{SNAKE} </S>"] == "3"
        assert file[index["Hello"]].shape == (3, 1, 16)


def test_big_arrays_are_copied_in_chunks(
    tiny_model: ElmoModel, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "COPY_ROWS", 7)
    for name in ("vectors.h5", "vectors.npz"):
        output = text.with_name(name)
        embed_file(text, output, tiny_model, tokenizer, SETTINGS)
        check(output, tiny_model)


def test_parts_hold_words_as_they_are(tiny_model: ElmoModel, tmp_path: Path) -> None:
    source = io.BytesIO(b'1\t"\\\t_\t_\t_\t_\t0\t_\t_\t_\n')
    output = tmp_path / "vectors.safetensors"
    embed_file(source, output, tiny_model, tokenizer, Settings(input_format="conllu"))
    words = load_file(output / "00000000.safetensors")["sentences"].tobytes()
    assert json.loads(words) == [['"\\']]


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
    [("os.fsync", 2, 2), ("Path.replace", 3, 2), ("_read_words", 2, 4), ("shutil.rmtree", 0, 4)],
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
        target = getattr(files, owner) if owner else files
        monkeypatch.setattr(target, attribute, stop_at(getattr(target, attribute), calls, kill))
        embed_file(text, output, tiny_model, tokenizer, SETTINGS)

    assert run_in_fork(run_until_killed) == [-signal.SIGKILL]
    if place == "shutil.rmtree":  # the output is there, and so are the parts
        check(output, tiny_model)
    else:
        assert not output.exists()
    parts = list(output.with_name(name + ".partial").glob("*.safetensors"))
    assert len(parts) == num_parts
    computed: list[int] = []
    embed_pieces = files.embed_pieces
    monkeypatch.setattr(
        files,
        "embed_pieces",
        lambda block, *a, **k: computed.append(1) or embed_pieces(block, *a, **k),
    )
    embed_file(text, output, tiny_model, tokenizer, SETTINGS, overwrite=True)
    check(output, tiny_model)
    assert len(computed) == NUM_PARTS - num_parts
    assert not output.with_name(name + ".partial").exists()


def test_a_full_disk_is_told_and_nothing_is_lost(
    tiny_model: ElmoModel, model_folder: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    output = text.with_name("vectors.h5")
    command = ["embed", str(text), str(output), "--model", str(model_folder), "--batch-tokens", "4"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", stop_at(os.fsync, 3, fill_disk))
        result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert "No space left on device" in result.output
    assert "What is complete is kept" in result.output
    names = {path.name for path in output.with_name("vectors.h5.partial").iterdir()}
    assert names == {f"0000000{number}.safetensors" for number in range(3)} | {"settings.json"}
    assert CliRunner().invoke(app, command).exit_code == 0
    check(output, tiny_model)


def test_hdf5_is_not_begun_where_it_does_not_fit(
    tiny_model: ElmoModel, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = text.with_name("vectors.h5")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=20_000))
        with pytest.raises(
            OSError, match=r"No space left on device \(\d+ bytes needed, 20000 free"
        ):
            embed_file(text, output, tiny_model, tokenizer, SETTINGS)
    assert not output.with_name("vectors.h5.partial").joinpath("output").exists()
    monkeypatch.setattr(files, "embed_pieces", None)  # nothing is computed again
    embed_file(text, output, tiny_model, tokenizer, SETTINGS)


def test_parts_are_copied_where_they_cannot_be_linked(
    tiny_model: ElmoModel, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", fail)
    output = text.with_name("vectors.safetensors")
    embed_file(text, output, tiny_model, tokenizer, SETTINGS)
    check(output, tiny_model)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_two_processes_share_the_work(tiny_model: ElmoModel, text: Path, tmp_path: Path) -> None:
    output = text.with_name("vectors.h5")

    def work(rank: int) -> None:
        store = f"file://{tmp_path}/store"
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
        write_part = files._write_part

        def write(part: Path, *args: Any) -> None:
            assert int(part.stem) % 2 == rank
            write_part(part, *args)

        files._write_part = write
        embed_file(text, output, tiny_model, tokenizer, SETTINGS)
        assert output.exists()
        distributed.destroy_process_group()

    assert run_in_fork(lambda: work(0), lambda: work(1)) == [0, 0]
    check(output, tiny_model)


def test_a_run_does_not_go_on_with_other_settings(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    with pytest.raises(
        ValueError, match=r"something else, with layers 'all', pooling 'none'\. Go on"
    ):
        embed_file(
            text,
            output,
            tiny_model,
            tokenizer,
            Settings(layers="top", pooling="mean", batch_tokens=4),
        )


def test_a_run_does_not_go_on_with_another_model(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    with torch.no_grad():
        tiny_model.token_encoder.projection.bias[0] += 1
    with pytest.raises(ValueError, match="something else, with weights"):
        embed_file(text, output, tiny_model, tokenizer, SETTINGS)


def test_a_run_does_not_go_on_with_another_quantization(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    with pytest.raises(ValueError, match="something else, with quantization None"):
        embed_file(text, output, tiny_model.quantize("int8"), tokenizer, SETTINGS)


def test_a_run_does_not_go_on_with_another_text(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    text.write_text(text.read_text().replace("river", "rivers", 1))
    with pytest.raises(ValueError, match="Sentence 2 is not the one that was there when"):
        embed_file(text, output, tiny_model, tokenizer, SETTINGS)


def start_and_fail(model: ElmoModel, text: Path, output: Path) -> None:
    """Leave a run that broke off at the last line."""
    source = io.BytesIO(text.read_bytes() + b"\xff")
    with pytest.raises(ValueError, match="not UTF-8"):
        embed_file(source, output, model, tokenizer, SETTINGS)


@pytest.mark.parametrize(
    ("lines", "input_format", "message"),
    [
        ([b"good\n", b"na\xefve\n"], "text", "Line 2 is not UTF-8: byte 0xef in column 3. Convert"),
        (
            [b"1\tword\n"],
            "conllu",
            "Line 1 is not CoNLL-U: expected 10 columns between tabs, got 2",
        ),
    ],
)
def test_malformed_text_is_refused_by_its_line(
    lines: list[bytes], input_format: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        list(read_sentences(lines, input_format))


def test_text_is_a_sentence_a_line() -> None:
    lines = ["\ufeffThe  bank\r\n", "\n", " A river\u2028bank"]
    sentences = list(read_sentences([line.encode() for line in lines], "text"))
    assert sentences == [["The", "bank"], [], ["A", "river", "bank"]]


def test_conllu_gives_its_syntactic_words() -> None:
    rows = ["# text = vámonos", "1-2\tvámonos", "1\tvamos", "2\tnos", "2.1\tgap", "", "", "1\tfin"]
    tail = "\t_" * 8
    lines = [(row + tail if "\t" in row else row) + "\n" for row in rows]
    sentences = list(read_sentences([line.encode() for line in lines], "conllu"))
    assert sentences == [["vamos", "nos"], ["fin"]]


def test_raw_text_is_cut_by_spacy() -> None:
    lines = [b"The bank's rates rose.  A  river. \n", b"  \n", b"New\tline"]
    sentences = list(read_sentences(lines, "raw", "en"))
    assert sentences == [
        ["The", "bank", "'s", "rates", "rose", "."],
        ["A", "river", "."],
        ["New", "line"],
    ]


def test_an_unknown_language_is_told() -> None:
    with pytest.raises(ValueError, match="Expected a spaCy language or pipeline, got 'xq'"):
        list(read_sentences([b"text"], "raw", "xq"))


def test_the_command_reads_stdin(model_folder: Path, tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.npz")
    result = CliRunner().invoke(
        app,
        ["embed", "-", str(output), "--model", str(model_folder), "--layers", "-1"],
        input=text.read_bytes(),
    )
    assert result.exit_code == 0, result.output
    check(output, tiny_model, layers="top")


def test_the_command_quantizes(model_folder: Path, tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.npz")
    command = ["embed", str(text), str(output), "--model", str(model_folder)]
    result = CliRunner().invoke(app, [*command, "--quantization", "int8"])
    assert result.exit_code == 0, result.output
    check(output, tiny_model.quantize("int8"))
    with pytest.raises(AssertionError, match="Mismatched elements"):
        check(output, tiny_model.quantize(None))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{text}", "x.h5", "--model", "./no-such-folder"], "Could not load './no-such-folder'"),
        (["{text}", "x.h5", "--model", "{text}"], "convert it first: python -m convert"),
        (["absent.txt", "x.h5"], "No such file or directory: 'absent.txt'"),
        (["{text}", "x.bin"], "Cannot tell the format of 'x.bin'"),
        (["{text}", "{text}"], "Cannot tell the format"),
        (["{text}", "{text}", "--output-format", "npz"], "is there already: use another name"),
        (["{text}", "x.h5", "--layers", "9"], "Expected a layer from 0 (word vectors) to 2, got 9"),
        (["{text}", "x.h5", "--layers", "last"], "Expected layers mix, all, top, mean or a number"),
        (["{empty}", "x.h5"], "The input holds no sentence"),
        (["{text}", "x.h5", "--device", "gpu"], "Expected a device that is here"),
        (["{text}", "x.h5", "--device", "cuda:99"], "cpu, cuda or the like, got 'cuda:99'"),
        (
            ["{text}", "x.h5", "--device", "meta", "--quantization", "int8"],
            "Use the device cpu, or quantization=None.",
        ),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str],
    message: str,
    text: Path,
    model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(text.parent)
    Path("empty.txt").touch()
    command = [argument.format(text="text.txt", empty="empty.txt") for argument in arguments]
    if "--model" not in command:
        command += ["--model", str(model_folder)]
    result = CliRunner().invoke(app, ["embed", *command])
    assert result.exit_code == 1
    assert message in result.output.replace("\n", " ")
    assert not Path("x.h5").exists()
    assert not list(Path().glob("*.partial"))


def test_several_processes_do_not_share_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "init_process_group", lambda *args, **kwargs: None)
    result = CliRunner().invoke(app, ["embed", "-", "x.h5"])
    assert "Several processes cannot share stdin" in result.output


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

"""The command that embeds a file: its input, its options, its errors."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.__main__ import app
from hf_elmo.corpus.commands import _open_stdin
from hf_elmo.inference.embedding import embed
from hf_elmo.onnx import OrtElmoModel

SENTENCES = [["The", "bank", "raised", "its", "rates", "."], [], ["A", "river", "bank"]]
tokenizer = ElmoTokenizer()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(" ".join(words) + "\n" for words in SENTENCES))
    return path


def check(path: Path, model: ElmoModel, **options: Any) -> None:
    expected = list(embed(SENTENCES, model, tokenizer, **{"layers": "all", **options}))
    with np.load(path) as arrays:
        for number, vectors in enumerate(expected):
            np.testing.assert_allclose(arrays[str(number)], vectors, rtol=0, atol=1e-5)


def test_the_command_reads_stdin(tiny_folder: Path, tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.npz")
    result = CliRunner().invoke(
        app,
        ["embed", "-", str(output), "--model", str(tiny_folder), "--layers", "-1"],
        input=text.read_bytes(),
    )
    assert result.exit_code == 0, result.output
    check(output, tiny_model, layers="top")


def test_closed_standard_input_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ValueError, match="standard input, but it is closed"):
        _open_stdin()


def test_the_command_reads_compressed_text(
    tiny_folder: Path, tiny_model: ElmoModel, text: Path
) -> None:
    output = text.with_name("vectors.npz")
    compressed = text.with_name("text.txt.gz")
    compressed.write_bytes(gzip.compress(text.read_bytes()))
    result = CliRunner().invoke(
        app, ["embed", str(compressed), str(output), "--model", str(tiny_folder)]
    )
    assert result.exit_code == 0, result.output
    check(output, tiny_model)


def test_the_command_quantizes(tiny_folder: Path, tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.npz")
    command = ["embed", str(text), str(output), "--model", str(tiny_folder)]
    result = CliRunner().invoke(app, [*command, "--quantization", "int8", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    check(output, OrtElmoModel.from_model(tiny_model, quantization="int8"))
    with pytest.raises(AssertionError, match="Mismatched elements"):
        check(output, tiny_model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{text}", "x.h5", "--model", "./no-such-folder"], "Could not load './no-such-folder'"),
        (["{text}", "x.h5", "--model", "{text}"], "convert it first: elmo-convert"),
        (["absent.txt", "x.h5"], "Expected files to read, found none at absent.txt"),
        (["{text}", "x.h5", "--shard", "4/3"], "Expected a shard such as 1/3"),
        (["{text}", "x.h5", "--id-column", "id"], "Expected a parquet output with an id"),
        (["{text}", "x.parquet", "--id-column", "id"], "Expected parquet files with"),
        (["{text}", "s3://bucket/x.h5"], "Expected a local output"),
        (["{text}", "x.h5", "--pipeline", "de"], "Expected --input-format raw with --pipeline de"),
        (["{text}", "x.bin"], "Unknown format of 'x.bin'"),
        (["{text}", ".", "--output-format", "npz"], "Expected the name of a new file or folder"),
        (["{text}", "{text}"], "Unknown format"),
        (["{text}", "{text}", "--output-format", "npz"], "exists. Use another name"),
        (["{text}", "x.h5", "--layers", "9"], "Expected a layer from 0 (word vectors) to 2, got 9"),
        (["{text}", "x.h5", "--layers", "last"], "Expected layers mix, all, top, mean or a number"),
        (["{empty}", "x.h5"], "Expected sentences in the input"),
        (["{text}", "x.h5", "--device", "gpu"], "Expected a device of this machine, got 'gpu'"),
        (["{text}", "x.h5", "--layers=--1"], "Expected layers mix, all, top, mean or a number"),
        (
            ["{text}", "x.h5", "--dtype", "bfloat16", "--backend", "onnx"],
            "Use dtype float32, the device cpu and the backend onnx",
        ),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str],
    message: str,
    text: Path,
    tiny_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(text.parent)
    Path("empty.txt").touch()
    command = [argument.format(text="text.txt", empty="empty.txt") for argument in arguments]
    if "--model" not in command:
        command += ["--model", str(tiny_folder)]
    result = CliRunner().invoke(app, ["embed", *command])
    assert result.exit_code == 1
    assert message in result.output.replace("\n", " ")
    assert not Path("x.h5").exists()
    assert not list(Path().glob("*.partial"))


def test_a_shard_has_an_output_of_its_own(tiny_folder: Path, text: Path) -> None:
    command = ["embed", str(text), str(text.with_name("x.npz")), "--model", str(tiny_folder)]
    result = CliRunner().invoke(app, [*command, "--shard", "1/3"])
    assert result.exit_code == 0, result.output
    assert text.with_name("x-00001-of-00003.npz").exists()
    result = CliRunner().invoke(app, [*command, "--shard", "2/3"])  # all is in the first part
    assert "Expected sentences in the input for shard 2/3" in result.output

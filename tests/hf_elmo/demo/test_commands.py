"""The command `python -m hf_elmo demo`."""

import json
from pathlib import Path

from typer.testing import CliRunner

from hf_elmo.__main__ import app


def test_the_folder_is_written(tiny_folder: Path, runtime: Path, tmp_path: Path) -> None:
    output = tmp_path / "demo"
    options = ["--model", str(tiny_folder), "--onnxruntime-web", str(runtime)]
    result = CliRunner().invoke(app, ["demo", str(output), *options])
    assert result.exit_code == 0, result.output
    assert f"Wrote {output}" in result.output.replace("\n", "")
    assert json.loads((output / "data.json").read_text())["model"] == "tiny-elmo"


def test_a_model_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    folder = str(tmp_path / "demo")
    result = CliRunner().invoke(app, ["demo", folder, "--model", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.output

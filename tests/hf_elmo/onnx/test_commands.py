"""`python -m hf_elmo export` writes a file, and says what is wrong."""

from pathlib import Path

import onnxruntime
from typer.testing import CliRunner

from hf_elmo.__main__ import app


def test_the_command_exports_a_folder(tiny_folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "model.onnx"
    command = ["export", str(output), "--model", str(tiny_folder)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    names = [entry.name for entry in onnxruntime.InferenceSession(output).get_outputs()]
    assert names == ["hidden_states", "elmo"]
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 1
    assert "which exists" in again.output

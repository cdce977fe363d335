"""The command `python -m hf_elmo demo`."""

from pathlib import Path

from typer.testing import CliRunner

from hf_elmo.__main__ import app


def test_the_page_is_written(tiny_folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "demo.html"
    result = CliRunner().invoke(app, ["demo", "--model", str(tiny_folder), "--output", str(output)])
    assert result.exit_code == 0, result.output
    assert f"Wrote {output}" in result.output.replace("\n", "")
    assert '"model": "tiny-elmo"' in output.read_text(encoding="utf-8")


def test_a_model_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--model", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.output

import errno
import io
import os
import sys
from pathlib import Path

import pytest
import typer
from safetensors import SafetensorError
from tqdm import tqdm
from typer.testing import CliRunner

from hf_elmo.command_errors import report_errors, run_app


@pytest.mark.parametrize("error", [OSError, ValueError, ImportError, SafetensorError])
def test_an_error_is_a_line_on_stderr_without_a_traceback(error: type[Exception]) -> None:
    @report_errors
    def command() -> None:
        raise error("Expected tea, got coffee.")

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app)

    assert result.exit_code == 1
    assert result.stderr == "Error: Expected tea, got coffee.\n"
    assert result.stdout == ""


def test_an_error_cannot_steer_the_terminal() -> None:
    @report_errors
    def command() -> None:
        raise ValueError("Expected tea,\n\tgot \x1b[2J\x9b31m\u202egreen.")

    app = typer.Typer()
    app.command()(command)
    printed = CliRunner().invoke(app).stderr
    assert printed == "Error: Expected tea,\n\tgot \\x1b[2J\\x9b31m\\u202egreen.\n"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [(None, "🐈 é\n".encode()), ("cp1252", b"\\U0001f408 \xe9\n")],
    ids=["redirected", "chosen by the user"],
)
def test_output_to_a_file_is_utf_8_or_as_the_user_chose(
    chosen: str | None, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = typer.Typer()
    app.command()(lambda: typer.echo("🐈 é"))
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    if chosen is not None:
        monkeypatch.setenv("PYTHONIOENCODING", chosen)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "argv", ["command"])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252", newline="\n"))
    with pytest.raises(SystemExit, match="0"):
        run_app(app)
    assert written.getvalue() == expected


def test_patterns_are_not_expanded_before_the_command_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = typer.Typer()
    app.command()(lambda path: typer.echo(path))  # noqa: PLW0108 (its parameter is an argument)
    for name in "ab":
        (tmp_path / f"{name}.txt").touch()
    monkeypatch.setattr(sys, "argv", ["command", str(tmp_path / "*.txt")])
    with monkeypatch.context() as windows:
        windows.setattr("typer.core.os.name", "nt")
        with pytest.raises(SystemExit, match="0"):
            run_app(app)
    assert capsys.readouterr().out == f"{tmp_path / '*.txt'}\n"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("train", "Add --resume"), ("pretrain", "Add --resume"), ("embed", "Run the same command")],
)
def test_an_interrupted_command_says_how_to_go_on(
    name: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise KeyboardInterrupt

    command.__name__ = name
    with pytest.raises(KeyboardInterrupt):
        report_errors(command)()
    assert f"Interrupted. {hint}" in capsys.readouterr().err


def test_a_reader_that_wants_no_more_is_no_error() -> None:
    @report_errors
    def command() -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app)

    assert result.exit_code == 1
    assert result.stderr == ""


def test_a_mistake_of_the_program_keeps_its_traceback() -> None:
    @report_errors
    def command() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        command()


def test_a_command_draws_its_bars_where_stderr_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    @report_errors
    def command() -> None:
        seen.extend(tqdm([1, 2]))

    monkeypatch.setattr(sys, "stderr", None)
    command()
    sys.stderr.close()
    assert seen == [1, 2]

import errno
import os
import sys

import pytest
import typer
from safetensors import SafetensorError
from tqdm import tqdm
from typer.testing import CliRunner

from hf_elmo.command_errors import report_errors


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

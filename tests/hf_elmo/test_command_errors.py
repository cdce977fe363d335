import pytest
import typer
from typer.testing import CliRunner

from hf_elmo.command_errors import report_errors


@pytest.mark.parametrize("error", [OSError, ValueError, ImportError])
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


def test_a_mistake_of_the_program_keeps_its_traceback() -> None:
    @report_errors
    def command() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        command()

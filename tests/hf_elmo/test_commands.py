"""The command line collects the commands of the rooms."""

import pytest
from typer.testing import CliRunner

from hf_elmo.__main__ import app

COMMANDS = ("embed", "vocab", "pretrain", "evaluate", "score", "substitutes")


def test_help_lists_the_commands_of_all_rooms() -> None:
    output = CliRunner().invoke(app, ["--help"]).output
    assert [name for name in COMMANDS if name not in output] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself_by_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"python -m hf_elmo {command}" in " ".join(result.output.split())

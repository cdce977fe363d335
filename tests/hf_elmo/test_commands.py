"""The command line collects the commands of the rooms."""

import subprocess
import sys
from pathlib import Path

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


@pytest.mark.slow
def test_a_closed_stderr_stops_no_command(tmp_path: Path) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "vocab.txt"
    text.write_text("a bank\n")
    command = [sys.executable, "-m", "hf_elmo", "vocab", text, "--output", output]
    subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *command], check=True)
    assert output.read_text().split() == ["<S>", "</S>", "<UNK>", "a", "bank"]

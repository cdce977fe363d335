"""The command line says what it did, and what went wrong without a traceback."""

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from convert import FORMATS
from convert.__main__ import app


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_command_converts_and_says_what(weights: Path, place: Path) -> None:
    result = run(weights, place / "model", "--license", "apache-2.0")
    assert result.exit_code == 0
    assert "2 LSTM layers in both directions, cells 6, output 8" in result.output
    assert f"Wrote {place / 'model'}." in result.output
    assert "license: apache-2.0" in (place / "model" / "README.md").read_text(encoding="utf-8")


def test_command_says_what_it_would_do(weights: Path, place: Path) -> None:
    result = run(weights, place / "model", "--dry-run")
    assert result.exit_code == 0
    assert "parameters" in result.output
    assert "Nothing was written." in result.output


def test_command_tells_mistakes_without_a_traceback(weights: Path, place: Path) -> None:
    result = run(place / "nothing", place / "model")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {place / 'nothing'}: expected a checkpoint, found no")


def test_command_lists_the_formats() -> None:
    result = run("--list-formats")
    assert result.exit_code == 0
    assert all(known.name in result.output for known in FORMATS)


def test_help_teaches_with_examples() -> None:
    result = run("--help")
    assert "elmo-convert weights.hdf5 my-elmo" in result.output


def test_command_lists_the_published_models() -> None:
    result = run("--list-published", "--language", "de")
    assert result.exit_code == 0
    assert result.output.startswith("NAME")
    assert "many-langs/de" in result.output


def test_an_unknown_language_is_a_mistake() -> None:
    result = run("--list-published", "--language", "klingon")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: Expected a language of published models")


def test_source_and_target_are_needed(weights: Path) -> None:
    result = run(weights)
    assert result.exit_code == 1
    assert result.stderr == "Error: Expected SOURCE and TARGET; see --help.\n"


def test_options_without_effect_are_mistakes(weights: Path, place: Path) -> None:
    for arguments, message in (
        ([weights, place / "x.th", "--to", "allennlp", "--license", "mit"], "--to huggingface wit"),
        ([weights, place / "x", "--language", "de"], "Expected --list-published together"),
        ([weights, place / "x", "--list-published"], "Expected no SOURCE with --list-published"),
    ):
        result = run(*arguments)
        assert result.exit_code != 0
        assert message in " ".join(result.output.split())
    assert list(place.iterdir()) == []

from pathlib import Path

import pytest
import spacy
from spacy.language import Language
from typer.testing import CliRunner

from spacy_elmo.__main__ import app


def test_command_shows_the_table(trained: Language, tmp_path: Path) -> None:
    trained.to_disk(tmp_path)
    result = CliRunner().invoke(app, ["show-mix", str(tmp_path)])
    assert result.exit_code == 0
    assert "tagger2" in result.output


def test_a_plot_overwrites_no_file_of_the_users(trained: Language, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trained.to_disk(tmp_path / "pipeline")
    plot = tmp_path / "mix.svg"
    plot.write_text("mine")
    command = ["show-mix", str(tmp_path / "pipeline"), "--plot", str(plot)]
    assert "give --overwrite" in CliRunner().invoke(app, command).stderr
    assert plot.read_text() == "mine"
    assert CliRunner().invoke(app, [*command, "--overwrite"]).exit_code == 0
    assert plot.read_text() != "mine"


@pytest.mark.parametrize(
    ("is_pipeline", "message"), [(True, "spacy_elmo.ElmoListener.v1"), (False, "Can't find model")]
)
def test_errors_are_one_line_without_a_traceback(
    tmp_path: Path, is_pipeline: bool, message: str
) -> None:
    if is_pipeline:
        spacy.blank("xx").to_disk(tmp_path / "pipeline")
    result = CliRunner().invoke(app, ["show-mix", str(tmp_path / "pipeline")])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1

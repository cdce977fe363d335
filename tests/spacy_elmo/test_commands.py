from pathlib import Path

import spacy
from spacy.language import Language
from typer.testing import CliRunner

from spacy_elmo.__main__ import app


def test_command_shows_the_table(trained: Language, tmp_path: Path) -> None:
    trained.to_disk(tmp_path)
    result = CliRunner().invoke(app, ["show-mix", str(tmp_path)])
    assert result.exit_code == 0
    assert "tagger2" in result.output


def test_command_says_what_a_pipeline_without_mixes_lacks(tmp_path: Path) -> None:
    spacy.blank("en").to_disk(tmp_path)
    result = CliRunner().invoke(app, ["show-mix", str(tmp_path)])
    assert result.exit_code == 2
    assert "ElmoListener" in result.output

"""spaCy's command line with `elmo` in the pipeline: each command in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
import spacy
from spacy.tokens import Doc, DocBin

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tiny_folder: Path, tmp_path: Path) -> Path:
    """A configuration as a user would write it: only what differs from the defaults."""
    path = tmp_path / "base.cfg"
    path.write_text(
        f"""
        [nlp]
        lang = "en"
        pipeline = ["sentencizer", "elmo"]
        [components]
        [components.sentencizer]
        factory = "sentencizer"
        [components.elmo]
        factory = "elmo"
        [components.elmo.model]
        @architectures = "spacy_elmo.ElmoModel.v1"
        name = "{tiny_folder}"
        [initialize]
        [initialize.components]
        """.replace("        ", "")
    )
    return path


def run_spacy(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "spacy", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_find_function_knows_the_architecture() -> None:
    assert "architecture.py" in run_spacy("find-function", "spacy_elmo.ElmoModel.v1")


def test_config_is_filled_and_valid(config: Path, tmp_path: Path) -> None:
    run_spacy("init", "fill-config", config, tmp_path / "full.cfg")
    filled = (tmp_path / "full.cfg").read_text()
    assert 'set_tensor = "auto"' in filled
    paths = ["--paths.train", "train.spacy", "--paths.dev", "dev.spacy"]
    assert "Config is valid" in run_spacy("debug", "config", tmp_path / "full.cfg", *paths)


def test_assembled_pipeline_can_be_packaged_and_timed(config: Path, tmp_path: Path) -> None:
    assembled = tmp_path / "assembled"
    run_spacy("assemble", config, assembled)
    words = spacy.load(assembled)("The bank").tensor.shape[0]
    assert words == 2

    (tmp_path / "packages").mkdir()
    run_spacy("package", assembled, tmp_path / "packages", "--name", "banks", "--build", "none")
    (package,) = (tmp_path / "packages").glob("en_banks-*")
    assert "spacy-elmo" in (package / "meta.json").read_text()
    (data,) = package.glob("en_banks/en_banks-*")
    assert spacy.load(data)("The bank").tensor.shape[0] == 2

    docs = [Doc(spacy.blank("xx").vocab, words=["The", "bank"])] * 4
    DocBin(docs=docs).to_disk(tmp_path / "docs.spacy")
    timing = run_spacy(
        "benchmark", "speed", assembled, tmp_path / "docs.spacy", "--batches", "30", "-b", "2"
    )
    assert "Mean" in timing

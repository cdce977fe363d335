"""`python -m hf_elmo export` writes a folder, and says what is wrong."""

import json
import shutil
from pathlib import Path

import onnxruntime
import pytest
from typer.testing import CliRunner

from hf_elmo import ElmoForTokenClassification, ElmoModel, ElmoTokenizer
from hf_elmo.__main__ import app


def test_the_command_exports_a_folder(tiny_folder: Path, tmp_path: Path) -> None:
    (tiny_folder / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    output = tmp_path / "exported"
    command = ["export", str(tiny_folder), str(output)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    session = onnxruntime.InferenceSession(output / "model.onnx")
    assert [entry.name for entry in session.get_outputs()] == ["hidden_states", "elmo"]
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["licence"] == "mit"
    assert json.loads(metadata["tokenizer"])["max_characters_per_token"]
    assert str(tmp_path) not in str(metadata)  # paths of this computer are not published
    assert {"config.json", "tokenizer_config.json"} <= {path.name for path in output.iterdir()}
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 1
    assert "which exists" in again.output


def test_other_files_in_the_folder_are_not_overwritten(tiny_folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "exported"
    output.mkdir()
    (output / "config.json").write_text("mine")
    result = CliRunner().invoke(app, ["export", str(tiny_folder), str(output)])
    assert result.exit_code == 1
    assert [path.name for path in output.iterdir()] == ["config.json"]
    assert (output / "config.json").read_text() == "mine"


def test_the_head_that_a_folder_names_is_exported(tiny_model: ElmoModel, tmp_path: Path) -> None:
    ElmoForTokenClassification(tiny_model.config).save_pretrained(tmp_path)
    ElmoTokenizer.from_config(tiny_model.config).save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    result = CliRunner().invoke(app, ["export", str(tmp_path), str(tmp_path)])
    assert result.exit_code == 0, result.output
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [entry.name for entry in session.get_outputs()] == ["logits"]
    (tmp_path / "model.onnx").unlink()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_model_on_the_hub_is_exported_with_its_licence(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "cache" / "models--org--elmo"
    folder = repository / "snapshots" / "0123456789012345678901234567890123456789"
    shutil.copytree(tiny_folder, folder)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(folder.name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = CliRunner().invoke(app, ["export", "org/elmo", str(tmp_path / "exported")])
    assert result.exit_code == 0, result.output
    session = onnxruntime.InferenceSession(tmp_path / "exported" / "model.onnx")
    assert session.get_modelmeta().custom_metadata_map["licence"] == "mit"

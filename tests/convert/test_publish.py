"""Converted models are pushed to the Hub and come back, over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bilm_tf import evaluate, make_bilm, run_model, write_bilm
from hub_server import TOKEN, Hub, run_hub
from typer.testing import CliRunner

from convert import ConversionError, convert_checkpoint
from convert.__main__ import app

# huggingface_hub's own, where it uploads large files by the plain protocol.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
SENTENCE = ["the", "naïve", "bank"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with run_hub() as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        # The stand-in knows the plain protocol for large files, which is used without this one.
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return write_bilm(tmp_path / "source", make_bilm())


def test_pushed_model_is_what_was_written(hub: Hub, weights: Path, tmp_path: Path) -> None:
    conversion = convert_checkpoint(weights, tmp_path / "model", push="someone/elmo")
    assert conversion.url == f"{hub.url}/someone/elmo/commit/{'0' * 40}"
    written = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    assert hub.repositories == {"someone/elmo": written}


def test_pushed_model_comes_back_by_its_name(hub: Hub, weights: Path, tmp_path: Path) -> None:
    convert_checkpoint(weights, tmp_path / "model", push="someone/elmo")
    conversion = convert_checkpoint("someone/elmo", tmp_path / "back")
    assert conversion.format == "huggingface"
    got = run_model(tmp_path / "back", SENTENCE)
    np.testing.assert_allclose(got, evaluate(make_bilm(), SENTENCE), atol=1e-5, rtol=0)


def test_a_second_push_replaces_the_first(hub: Hub, weights: Path, tmp_path: Path) -> None:
    for number in range(2):
        convert_checkpoint(weights, tmp_path / f"model{number}", push="someone/elmo")
    assert len(hub.repositories) == 1


def test_a_push_deletes_files_of_the_older_model(hub: Hub, weights: Path, tmp_path: Path) -> None:
    convert_checkpoint(weights, tmp_path / "model", push="someone/elmo")
    hub.repositories["someone/elmo"] |= {"scalar_mixes.json": b"{}", "notes.txt": b"mine"}
    convert_checkpoint(weights, tmp_path / "again", push="someone/elmo")
    found = set(hub.repositories["someone/elmo"])
    assert found == {path.name for path in (tmp_path / "again").iterdir()} | {"notes.txt"}


def test_command_line_pushes(hub: Hub, weights: Path, tmp_path: Path) -> None:
    arguments = [str(weights), str(tmp_path / "model"), "--push", "someone/elmo"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert f"Pushed to {hub.url}/someone/elmo" in result.output


def test_refusal_of_the_hub_leaves_the_model_here(
    hub: Hub, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(
        ConversionError, match=r"model: the conversion succeeded, but the upload to"
    ):
        convert_checkpoint(weights, tmp_path / "model", push="someone/elmo")
    assert (tmp_path / "model/config.json").is_file()
    assert hub.repositories == {}


def test_dry_run_pushes_nothing(hub: Hub, weights: Path, tmp_path: Path) -> None:
    convert_checkpoint(weights, tmp_path / "model", push="someone/elmo", dry_run=True)
    assert hub.repositories == {}


@pytest.mark.parametrize("name", ["a/b/c", "some one/elmo", "someone/-elmo", ""])
def test_names_that_cannot_be_are_refused_first(name: str, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"Expected a repository name"):
        convert_checkpoint(weights, tmp_path / "model", push=name)
    assert not (tmp_path / "model").exists()


def test_only_models_of_hugging_face_are_pushed(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="Expected --to huggingface"):
        convert_checkpoint(weights, tmp_path / "x.hdf5", to="bilm-hdf5", push="someone/elmo")

"""The bundled model has a name, and other names stay what they are."""

from pathlib import Path

import pytest
from safetensors import safe_open

from hf_elmo.bundled import BUNDLED_NAME, resolve_name

MAX_BYTES = 16_000_000


def test_the_bundled_name_is_a_folder_with_a_model() -> None:
    folder = Path(resolve_name(BUNDLED_NAME))
    names = {"config.json", "model.safetensors", "tokenizer_config.json", "target_vocab.txt"}
    assert names <= {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["someone/elmo", "folder", "./elmo-mini-en"])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert resolve_name(name) == name


def test_a_folder_with_the_name_of_the_bundled_model_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(BUNDLED_NAME).mkdir()
    Path(BUNDLED_NAME, "config.json").touch()
    with pytest.warns(UserWarning, match=r"To use that, write '\./elmo-mini-en'"):
        assert Path(resolve_name(BUNDLED_NAME)).is_absolute()


def test_an_installation_without_the_model_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_elmo.bundled.__file__", "/nowhere/__init__.py")
    with pytest.raises(FileNotFoundError, match="holds no bundled model 'elmo-mini-en'"):
        resolve_name(BUNDLED_NAME)


def test_the_weights_are_small_and_in_half_precision() -> None:
    weights = Path(resolve_name(BUNDLED_NAME)) / "model.safetensors"
    assert weights.stat().st_size <= MAX_BYTES
    with safe_open(weights, "pt") as tensors:
        dtypes = {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118 (no dictionary)
    assert dtypes == {"F16"}

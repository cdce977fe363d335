"""Conversions do what is asked for, or say what is wrong with it."""

from pathlib import Path
from typing import Any

import h5py
import pytest

from convert import FORMATS, ConversionError, convert_checkpoint
from hf_elmo import ElmoModel


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"to": "onnx"}, "Expected a format of huggingface, bilm-hdf5.* to write, got onnx"),
        ({"dtype": "int8"}, "Expected a dtype of float32, float16, bfloat16, got int8"),
        ({"to": "bilm-hdf5", "verify": "x.npz"}, "Expected --to huggingface"),
        ({"options": "nowhere.json"}, "nowhere.json"),
        ({"verify": "nowhere.npz"}, "nowhere.npz: expected a file, found none"),
        ({"sentences": "nowhere.txt"}, "Expected --verify together"),
        ({"softmax": "many-langs/de"}, "many-langs/de: expected the softmax of a model"),
    ],
)
def test_wrong_wishes_are_named(
    keywords: dict[str, Any], message: str, weights: Path, place: Path
) -> None:
    with pytest.raises((ConversionError, OSError), match=message):
        convert_checkpoint(weights, place / "model", **keywords)
    assert list(place.iterdir()) == []


def test_a_target_may_have_a_name_that_a_published_model_begins_with(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(ConversionError, match="found no such file or folder"):
        convert_checkpoint("nobody/has/this", "nobody")


def test_numbers_too_large_for_half_precision_are_named(weights: Path, place: Path) -> None:
    with h5py.File(weights, "a") as file:
        file["char_embed"][3, 1] = 1e5
    with pytest.raises(ConversionError, match="char_embed: values are too large for float16"):
        convert_checkpoint(weights, place / "model", dtype="float16")


def test_files_that_a_format_does_not_read_are_named(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    with pytest.raises(ConversionError, match=r"huggingface: expected no --softmax, got .*x.hdf5"):
        convert_checkpoint(place / "model", place / "other", softmax="x.hdf5")


def test_sources_of_no_format_are_named(place: Path) -> None:
    (place / "notes.txt").write_text("hello")
    with pytest.raises(ConversionError, match=r"notes.txt: unknown file format"):
        convert_checkpoint(place / "notes.txt", place / "model")
    with pytest.raises(ConversionError, match="found no such file or folder"):
        convert_checkpoint(place / "nothing", place / "model")


def test_formats_have_different_names() -> None:
    assert len({known.name for known in FORMATS}) == len(FORMATS)


def test_dry_run_tells_all_and_writes_nothing(weights: Path, place: Path) -> None:
    result = convert_checkpoint(weights, place / "model", dtype="float16", dry_run=True)
    assert list(place.iterdir()) == []
    assert result.format == "bilm-hdf5"
    assert result.num_bytes == 2 * result.num_parameters
    model = ElmoModel(result.config)
    assert result.num_parameters == sum(parameter.numel() for parameter in model.parameters())


def test_dry_run_finds_what_the_target_cannot_hold(weights: Path, place: Path) -> None:
    with pytest.raises(ConversionError, match=r"ends in \.hdf5"):
        convert_checkpoint(weights, place / "model", to="bilm-hdf5", dry_run=True)


def test_dry_run_needs_the_folder_of_the_target(weights: Path, place: Path) -> None:
    with pytest.raises(ConversionError, match="to be a folder, found none"):
        convert_checkpoint(weights, place / "nothing" / "model", dry_run=True)

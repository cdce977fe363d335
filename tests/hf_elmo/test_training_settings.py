"""What a training was begun with."""

from pathlib import Path

import pytest

from hf_elmo.training_settings import check_output, hold_to_settings, name_option


def test_an_option_is_named_as_it_is_typed() -> None:
    assert name_option("mix_l2") == "--mix-l2"


def test_what_a_training_has_not_made_is_left_alone(tmp_path: Path) -> None:
    check_output(tmp_path, resume=False)
    (tmp_path / "model.safetensors").touch()
    for resume in (False, True):
        with pytest.raises(ValueError, match="holds a model that would be lost"):
            check_output(tmp_path, resume=resume)
    (tmp_path / "checkpoint-1").mkdir()
    check_output(tmp_path, resume=True)
    with pytest.raises(ValueError, match="holds checkpoints of a training"):
        check_output(tmp_path, resume=False)


def test_other_processes_leave_it_to_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    hold_to_settings(tmp_path, {"seed": 1})
    assert not list(tmp_path.iterdir())


def test_settings_are_held_to_from_the_first_checkpoint_on(tmp_path: Path) -> None:
    hold_to_settings(tmp_path, {"seed": 1, "vectors": None})
    hold_to_settings(tmp_path, {"seed": 2, "vectors": None})
    (tmp_path / "checkpoint-1").mkdir()
    hold_to_settings(tmp_path, {"seed": 2, "vectors": None})
    with pytest.raises(ValueError, match="Expected --seed 2, with which the training in"):
        hold_to_settings(tmp_path, {"seed": 1, "vectors": None})
    with pytest.raises(ValueError, match=r"Expected no --vectors, .* got --vectors a.txt"):
        hold_to_settings(tmp_path, {"seed": 2, "vectors": tmp_path / "a.txt"})

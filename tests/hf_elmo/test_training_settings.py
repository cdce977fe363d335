"""What a training was begun with."""

from pathlib import Path

import pytest

from hf_elmo.training_settings import hold_to_settings, name_option


def test_an_option_is_named_as_it_is_typed() -> None:
    assert name_option("mix_l2") == "--mix-l2"


def test_other_processes_leave_it_to_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    hold_to_settings(tmp_path, {"seed": 1}, is_new=True)
    assert not list(tmp_path.iterdir())


def test_settings_are_held_to_until_a_new_training_begins(tmp_path: Path) -> None:
    hold_to_settings(tmp_path, {"seed": 1, "vectors": None}, is_new=False)  # there are none yet
    hold_to_settings(tmp_path, {"seed": 1, "vectors": None}, is_new=False)
    with pytest.raises(ValueError, match="Expected --seed 1, with which the training in"):
        hold_to_settings(tmp_path, {"seed": 2, "vectors": None}, is_new=False)
    hold_to_settings(tmp_path, {"seed": 2, "vectors": None}, is_new=True)
    with pytest.raises(ValueError, match=r"Expected --vectors None, .* got a.txt"):
        hold_to_settings(tmp_path, {"seed": 2, "vectors": "a.txt"}, is_new=False)

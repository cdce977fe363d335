"""Options of a run are held on resume."""

import shutil
from pathlib import Path

import pytest

from hf_elmo.training import resume_checks
from hf_elmo.training.resume_checks import (
    check_output,
    cut_path,
    fingerprint,
    hold_to_settings,
    list_checkpoints,
    name_option,
)


def make_checkpoint(folder: Path, step: int) -> None:
    (folder / f"checkpoint-{step}").mkdir()
    state = f'{{"global_step": {step}}}'
    (folder / f"checkpoint-{step}" / "trainer_state.json").write_text(state)


def test_an_option_is_named_as_it_is_typed() -> None:
    assert name_option("mix_l2") == "--mix-l2"


def test_what_a_training_has_not_made_is_left_alone(tmp_path: Path) -> None:
    check_output(tmp_path, resume=False)
    (tmp_path / "model.safetensors").touch()
    for resume in (False, True):
        with pytest.raises(ValueError, match=r"holds .*, which would be lost"):
            check_output(tmp_path, resume=resume)
    make_checkpoint(tmp_path, 1)
    check_output(tmp_path, resume=True)
    with pytest.raises(ValueError, match="holds checkpoints of a training"):
        check_output(tmp_path, resume=False)


@pytest.mark.parametrize(
    "name",
    [
        *("pytorch_model.bin", "config.json", "model-00001-of-00002.safetensors"),
        *("settings.json", "cpu_seconds.txt", "char_vocab.json", "mine.txt"),
    ],
)
@pytest.mark.parametrize("resume", [False, True])
def test_files_of_others_are_not_overwritten(name: str, resume: bool, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"holds .*, which would be lost"):
        check_output(tmp_path, resume=resume, others=("mine.txt",))


def test_files_that_a_run_does_not_write_are_no_obstacle(tmp_path: Path) -> None:
    for name in ("README.md", "log.txt", "vocab.txt"):
        (tmp_path / name).touch()
    check_output(tmp_path, resume=False)


def test_other_processes_leave_it_to_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    hold_to_settings(tmp_path, {"seed": 1}, {})
    assert not list(tmp_path.iterdir())


def test_settings_are_held_to_from_the_first_checkpoint_on(tmp_path: Path) -> None:
    hold_to_settings(tmp_path, {"seed": 1, "vectors": None}, {})
    hold_to_settings(tmp_path, {"seed": 2, "vectors": None}, {})
    make_checkpoint(tmp_path, 1)
    hold_to_settings(tmp_path, {"seed": 2, "vectors": None}, {})
    with pytest.raises(ValueError, match="Expected --seed 2, as when the run in"):
        hold_to_settings(tmp_path, {"seed": 1, "vectors": None}, {})
    with pytest.raises(ValueError, match=r"Expected no --vectors, .* got --vectors a.txt"):
        hold_to_settings(tmp_path, {"seed": 2, "vectors": tmp_path / "a.txt"}, {})


def test_damaged_options_of_a_run_are_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 3)
    (tmp_path / "settings.json").touch()
    with pytest.raises(ValueError, match=r"settings.json, but this file is damaged. Delete it"):
        hold_to_settings(tmp_path, {"seed": 1}, {})


def test_a_run_can_start_again_before_its_first_checkpoint(tmp_path: Path) -> None:
    hold_to_settings(tmp_path, {"seed": 1, "batch_size": 2}, {})
    (tmp_path / "cpu_seconds.txt").write_text("1.0")
    check_output(tmp_path, resume=False)
    (tmp_path / "settings.json").write_text('{"seed": 1, "mine": 2}')
    with pytest.raises(ValueError, match=r"holds cpu_seconds\.txt, which would be lost"):
        check_output(tmp_path, resume=False)


def test_a_model_beside_the_settings_of_a_run_is_not_overwritten(tmp_path: Path) -> None:
    hold_to_settings(tmp_path, {"seed": 1, "batch_size": 2}, {})
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match=r"holds model\.safetensors, which would be lost"):
        check_output(tmp_path, resume=True)


def test_a_run_is_not_resumed_with_other_files(tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    data.write_text("a")
    hold_to_settings(tmp_path, {"seed": 1}, {"train": fingerprint(data)})
    make_checkpoint(tmp_path, 1)
    hold_to_settings(tmp_path, {"seed": 1}, {"train": fingerprint(data)})
    data.write_text("b")
    with pytest.raises(ValueError, match="Expected --train with the content that it had"):
        hold_to_settings(tmp_path, {"seed": 1}, {"train": fingerprint(data)})


def test_a_fingerprint_of_a_model_depends_on_its_files(tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "org/name") is None
    (tmp_path / "config.json").write_text("{}")
    before = fingerprint(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    assert fingerprint(tmp_path) == before
    (tmp_path / "config.json").write_text("[]")
    assert fingerprint(tmp_path) != before


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_fingerprint_of_a_model_depends_on_its_weights(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    before = fingerprint(tmp_path)
    (tmp_path / name).write_bytes(b"y")
    assert fingerprint(tmp_path) != before


def test_a_fingerprint_does_not_depend_on_the_order_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("model-1.safetensors", "model-2.safetensors"):
        (tmp_path / name).write_text(name)
    before = fingerprint(tmp_path)
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *pattern: reversed(list(glob(*pattern))))
    assert fingerprint(tmp_path) == before


def test_a_fingerprint_of_a_long_file_depends_on_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume_checks, "HEAD_BYTES", 3)
    (tmp_path / "a.txt").write_text("abcd")
    before = fingerprint(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_text("abcde")
    assert fingerprint(tmp_path / "a.txt") != before


def test_checkpoints_are_listed_by_their_steps(tmp_path: Path) -> None:
    for step in (10, 9):
        make_checkpoint(tmp_path, step)
    for name in ("checkpoint-9-copy", "checkpoint-11", "checkpoint-009", "checkpoint-"):
        shutil.copytree(tmp_path / "checkpoint-9", tmp_path / name)
    assert list(list_checkpoints(tmp_path)) == [9, 10]


def test_a_run_of_a_version_without_an_option_can_be_resumed(tmp_path: Path) -> None:
    hold_to_settings(tmp_path, {"seed": 1}, {})
    make_checkpoint(tmp_path, 1)
    hold_to_settings(tmp_path, {"seed": 1, "units": "characters"}, {})


def test_files_may_move(tmp_path: Path) -> None:
    for place in ("old", "new"):
        (tmp_path / place / "model").mkdir(parents=True)
    (tmp_path / "settings.json").write_text('{"train": ["*.gz"], "model": "model"}')
    make_checkpoint(tmp_path, 1)
    for place in ("old", "new", "old"):
        paths = [Path(f"{place}/*.gz")]
        model = cut_path(str(tmp_path / place / "model"))
        hold_to_settings(tmp_path, {"train": paths, "model": model}, {})
    with pytest.raises(ValueError, match=r"Expected --train \['\*.gz'\]"):
        hold_to_settings(tmp_path, {"train": [Path("old/*.txt")], "model": model}, {})
    with pytest.raises(ValueError, match=r"Expected --model model, .*got --model org/model"):
        hold_to_settings(tmp_path, {"train": paths, "model": cut_path("org/model")}, {})


def test_more_files_than_before_are_named(tmp_path: Path) -> None:
    hold_to_settings(tmp_path, {"train": [Path("a.txt")]}, {})
    make_checkpoint(tmp_path, 1)
    with pytest.raises(ValueError, match=r"Expected --train \['a.txt'\].*got --train \['a.txt', "):
        hold_to_settings(tmp_path, {"train": [Path("a.txt"), Path("b.txt")]}, {})


def test_a_name_on_the_hub_counts_completely(tmp_path: Path) -> None:
    hold_to_settings(tmp_path, {"model": cut_path("org/model")}, {})
    make_checkpoint(tmp_path, 1)
    hold_to_settings(tmp_path, {"model": cut_path("org/model")}, {})
    for other in ("model", "another/model"):
        with pytest.raises(ValueError, match=f"Expected --model org/model, .*got --model {other}"):
            hold_to_settings(tmp_path, {"model": cut_path(other)}, {})

from functools import partial
from pathlib import Path

import pytest

from hf_elmo.pretraining.checkpoints import FILES, find_last_checkpoint, list_files


def find(folder: Path, num_processes: int = 1) -> Path | None:
    return find_last_checkpoint(folder, partial(list_files, num_processes=num_processes))


def make_checkpoint(folder: Path, step: int, *, without: str = "") -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    for name in (*FILES, "bilm_state_0.safetensors", "trainer_state.json"):
        if name != without:
            (checkpoint / name).write_text("{}")
    return checkpoint


def test_the_last_checkpoint_is_that_of_the_most_steps(tmp_path: Path) -> None:
    checkpoints = {step: make_checkpoint(tmp_path, step) for step in (8, 12, 9)}
    (tmp_path / "checkpoint-best").mkdir()

    assert find(tmp_path) == checkpoints[12]


def test_without_checkpoints_there_is_none(tmp_path: Path) -> None:
    assert find(tmp_path / "missing") is None


@pytest.mark.parametrize("without", ["trainer_state.json", "model.safetensors"])
def test_a_checkpoint_that_is_not_whole_is_skipped_with_a_warning(
    tmp_path: Path, without: str
) -> None:
    whole = make_checkpoint(tmp_path, 3)
    broken = make_checkpoint(tmp_path, 6, without=without)

    with pytest.warns(UserWarning, match=rf"checkpoint-6, which is not whole: it lacks {without}"):
        assert find(tmp_path) == whole
    assert broken.exists() == (without != "trainer_state.json")


def test_a_state_that_breaks_off_is_none(tmp_path: Path) -> None:
    broken = make_checkpoint(tmp_path, 6)
    (broken / "trainer_state.json").write_text('{"epoch": 1, "global')

    with pytest.warns(UserWarning, match="it lacks trainer_state.json. It was being written"):
        assert find(tmp_path) is None
    assert not broken.exists()


def test_the_state_of_every_process_must_be_there(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 6)

    with pytest.warns(UserWarning, match="it lacks bilm_state_1.safetensors"):
        assert find(tmp_path, 2) is None


@pytest.mark.parametrize("num_processes", [1, 3])
def test_another_number_of_processes_is_refused(tmp_path: Path, num_processes: int) -> None:
    checkpoint = make_checkpoint(tmp_path, 6)
    (checkpoint / "bilm_state_1.safetensors").touch()
    (checkpoint / "stream.json").write_text('{"num_processes": 2}')

    with pytest.raises(ValueError, match=rf"Expected 2 processes, .* got {num_processes}: each"):
        find(tmp_path, num_processes)
    assert find(tmp_path, 2) == checkpoint


def test_a_checkpoint_of_an_average_needs_the_trained_weights(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, 6)
    (checkpoint / "stream.json").write_text('{"is_averaged": true}')

    with pytest.warns(UserWarning, match="it lacks trained_weights.safetensors"):
        assert find(tmp_path) is None
    (checkpoint / "trained_weights.safetensors").touch()
    assert find(tmp_path) == checkpoint

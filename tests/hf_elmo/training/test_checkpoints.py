import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hf_elmo.training.checkpoints import FILES, find_last_checkpoint, list_files, list_random_states


def find(folder: Path, num_processes: int = 1) -> Path | None:
    return find_last_checkpoint(folder, partial(list_files, num_processes=num_processes))


def make_checkpoint(folder: Path, step: int, *, without: str = "") -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    for name in (*FILES, "bilm_state_0.safetensors", "rng_state.pth", "trainer_state.json"):
        if name != without:
            write(checkpoint / name, step)
    return checkpoint


def write(path: Path, step: int = 1) -> None:
    if path.suffix == ".safetensors":
        save_file({"x": torch.zeros(9)}, path)
    elif path.suffix in (".pt", ".pth"):
        torch.save({"x": torch.zeros(9)}, path)
    else:
        path.write_text(json.dumps({"global_step": step}) + "\n")


def test_the_last_checkpoint_is_that_of_the_most_steps(tmp_path: Path) -> None:
    checkpoints = {step: make_checkpoint(tmp_path, step) for step in (8, 12, 9)}
    (tmp_path / "checkpoint-best").mkdir()

    assert find(tmp_path) == checkpoints[12]


def test_without_checkpoints_there_is_none(tmp_path: Path) -> None:
    assert find(tmp_path / "missing") is None


def test_a_checkpoint_without_a_file_is_skipped_with_a_warning(tmp_path: Path) -> None:
    complete = make_checkpoint(tmp_path, 3)
    broken = make_checkpoint(tmp_path, 6, without="model.safetensors")

    with pytest.warns(
        UserWarning, match=r"Skipping .*checkpoint-6: missing or damaged: model.safetensors"
    ):
        assert find(tmp_path) == complete
    assert broken.exists()


@pytest.mark.parametrize("name", [*FILES, "bilm_state_0.safetensors", "rng_state.pth"])
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_damaged_checkpoint_is_skipped(name: str, is_empty: bool, tmp_path: Path) -> None:
    complete = make_checkpoint(tmp_path, 3)
    path = make_checkpoint(tmp_path, 6) / name
    path.write_bytes(path.read_bytes()[: 0 if is_empty else -3])

    with pytest.warns(UserWarning, match=rf"Skipping .*checkpoint-6: missing or damaged: {name}"):
        assert find(tmp_path) == complete


@pytest.mark.parametrize(
    ("written", "num_processes"), [(["rng_state.pth"], 2), (["rng_state_0.pth"], 1)]
)
def test_random_states_of_another_number_of_processes_are_not_needed(
    tmp_path: Path, written: list[str], num_processes: int
) -> None:
    for name in written:
        write(tmp_path / name)
    assert list_random_states(tmp_path, num_processes) == []


def test_random_states_are_needed_for_each_process(tmp_path: Path) -> None:
    assert list_random_states(tmp_path, 1) == ["rng_state.pth"]
    write(tmp_path / "rng_state_0.pth")
    assert list_random_states(tmp_path, 2) == ["rng_state_0.pth", "rng_state_1.pth"]


def test_a_checkpoint_that_was_being_written_is_deleted(tmp_path: Path) -> None:
    complete = make_checkpoint(tmp_path, 3)
    broken = make_checkpoint(tmp_path, 6)
    (broken / ".writing-checkpoint-6").touch()

    with pytest.warns(UserWarning, match=r"Deleting .*checkpoint-6: the run ended while"):
        assert find(tmp_path) == complete
    assert not broken.exists()


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint-",
        "checkpoint-1e3",
        "checkpoint-99999",
        "checkpoint-003",
        "checkpoint-3.bak",
        "checkpoint-old-5",
        "checkpoint-9-2026",
        "checkpoint-None",
        "checkpoint-٣",
    ],
)
@pytest.mark.parametrize("is_copy", [False, True])
def test_a_folder_that_the_run_has_not_made_is_left_alone(
    name: str, is_copy: bool, tmp_path: Path
) -> None:
    complete = make_checkpoint(tmp_path, 3)
    other = tmp_path / name
    if is_copy:
        (complete / ".writing-checkpoint-3").touch()
        shutil.copytree(complete, other)
        (complete / ".writing-checkpoint-3").unlink()
    other.mkdir(exist_ok=True)
    (other / "notes.txt").touch()

    assert find(tmp_path) == complete
    assert (other / "notes.txt").exists()


def test_the_state_of_every_process_must_be_there(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 6)

    with pytest.warns(UserWarning, match="missing or damaged: bilm_state_1.safetensors"):
        assert find(tmp_path, 2) is None


@pytest.mark.parametrize("num_processes", [1, 3])
def test_another_number_of_processes_is_refused(tmp_path: Path, num_processes: int) -> None:
    checkpoint = make_checkpoint(tmp_path, 6)
    for name in ("bilm_state_1.safetensors", "rng_state_0.pth", "rng_state_1.pth"):
        write(checkpoint / name)
    (checkpoint / "stream.json").write_text('{"num_processes": 2}')

    with pytest.raises(ValueError, match=rf"Expected 2 processes, .* got {num_processes}: each"):
        find(tmp_path, num_processes)
    assert find(tmp_path, 2) == checkpoint


def test_a_checkpoint_of_an_average_needs_the_trained_weights(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, 6)
    (checkpoint / "stream.json").write_text('{"is_averaged": true}')

    with pytest.warns(UserWarning, match="damaged: trained_weights.safetensors"):
        assert find(tmp_path) is None
    write(checkpoint / "trained_weights.safetensors")
    assert find(tmp_path) == checkpoint

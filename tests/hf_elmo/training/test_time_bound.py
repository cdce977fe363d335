"""The bound on a training's time."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from hf_elmo.training import time_bound
from hf_elmo.training.time_bound import TimeBound, read_seconds


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The processor's clock, as the test sets it."""
    clock = [100.0]
    monkeypatch.setattr(time_bound.time, "process_time", lambda: clock[0])
    return clock


def take_step(bound: TimeBound, folder: Path) -> bool:
    """Whether training ends after a step."""
    control = TrainerControl()
    bound.on_step_end(TrainingArguments(output_dir=str(folder)), TrainerState(), control)
    return control.should_training_stop


def test_the_step_that_goes_over_the_bound_is_the_last(tmp_path: Path, now: list[float]) -> None:
    bound = TimeBound(tmp_path, max_minutes=2)
    now[0] += 119
    assert not take_step(bound, tmp_path)
    now[0] += 2
    assert take_step(bound, tmp_path)


def test_the_time_before_a_kill_counts(tmp_path: Path, now: list[float]) -> None:
    bound = TimeBound(tmp_path, max_minutes=2)
    now[0] += 90
    take_step(bound, tmp_path)
    assert read_seconds(tmp_path) == 90
    again = TimeBound(tmp_path, max_minutes=2)
    now[0] += 29
    assert not take_step(again, tmp_path)
    now[0] += 2
    assert take_step(again, tmp_path)
    assert read_seconds(tmp_path) == 121


def test_a_bound_is_used_up_by_earlier_runs_only(tmp_path: Path, now: list[float]) -> None:
    bound = TimeBound(tmp_path, max_minutes=2)
    now[0] += 121
    assert not bound.is_used_up()
    take_step(bound, tmp_path)
    assert TimeBound(tmp_path, max_minutes=2).is_used_up()
    assert not TimeBound(tmp_path, max_minutes=3).is_used_up()


def test_without_a_bound_the_time_is_only_noted(tmp_path: Path, now: list[float]) -> None:
    bound = TimeBound(tmp_path)
    now[0] += 1e6
    assert not take_step(bound, tmp_path)
    assert read_seconds(tmp_path) == 1e6


def test_the_time_is_noted_about_once_a_second(tmp_path: Path, now: list[float]) -> None:
    bound = TimeBound(tmp_path)
    for seconds, noted in ((1.5, 1.5), (0.5, 1.5), (1.0, 3.0)):
        now[0] += seconds
        take_step(bound, tmp_path)
        assert read_seconds(tmp_path) == noted


def test_the_process_with_the_most_time_ends_all(
    tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelerate.utils.gather_object", lambda own: [*own, 121.0, 7.0])
    bound, control = TimeBound(tmp_path, max_minutes=2), TrainerControl()
    now[0] += 1
    bound.on_step_end(SimpleNamespace(world_size=3), TrainerState(), control)
    assert control.should_training_stop


def test_the_first_process_alone_notes_the_time(tmp_path: Path, now: list[float]) -> None:
    bound = TimeBound(tmp_path)
    now[0] += 9
    other = TrainerState(is_world_process_zero=False)
    bound.on_step_end(TrainingArguments(output_dir=str(tmp_path)), other, TrainerControl())
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_counts_as_no_time(tmp_path: Path) -> None:
    (tmp_path / "cpu_seconds.txt").touch()
    with pytest.warns(UserWarning, match=r"cpu_seconds.txt is damaged: the time of earlier runs"):
        assert read_seconds(tmp_path) == 0

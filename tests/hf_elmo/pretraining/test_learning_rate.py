from types import SimpleNamespace

import pytest
import torch
from transformers import SchedulerType, TrainerControl

from hf_elmo.pretraining import learning_rate
from hf_elmo.pretraining.learning_rate import (
    RATE_FACTORS,
    Optimizer,
    TrainingClock,
    choose_warmup,
    make_schedule,
    set_next_rates,
)


def find_rates(
    clock: TrainingClock, shape: str, num_warmup_steps: int, num_steps: int
) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    factors = RATE_FACTORS[SchedulerType(shape)]
    schedule = make_schedule(optimizer, factors, num_warmup_steps, num_steps, clock)
    rates = []
    for _ in range(num_steps + 1):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize(
    ("shape", "rates"),
    [("linear", [1.0, 0.75, 0.5, 0.25, 0.0]), ("cosine", [1.0, 0.85355, 0.5, 0.14645, 0.0])],
)
def test_the_rate_falls_with_the_steps(shape: str, rates: list[float]) -> None:
    assert find_rates(TrainingClock(), shape, 0, 4) == pytest.approx(rates, abs=1e-5)


def test_a_constant_rate_rises_from_the_first_step_too() -> None:
    rates = find_rates(TrainingClock(), "constant_with_warmup", 2, 4)
    assert rates == [0.5, 1.0, 1.0, 1.0, 1.0]


def test_the_rate_rises_in_the_warm_up() -> None:
    assert find_rates(TrainingClock(), "linear", 4, 8)[:4] == [0.25, 0.4375, 0.5625, 0.625]


def test_the_warm_up_ends_after_a_tenth_of_the_time() -> None:
    clock = TrainingClock(max_hours=1)
    clock.elapsed = 90.0
    assert find_rates(clock, "constant_with_warmup", 8, 3) == [0.25, 0.25, 0.375, 0.5]
    clock.elapsed = 360.0
    assert find_rates(clock, "constant_with_warmup", 8, 3) == [1.0, 1.0, 1.0, 1.0]


def test_the_time_counts_where_more_of_it_is_used_up_than_of_the_steps() -> None:
    clock = TrainingClock(max_hours=1)
    clock.elapsed = 1800.0
    assert find_rates(clock, "linear", 0, 4) == [0.5, 0.5, 0.5, 0.25, 0.0]


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_the_rate_is_zero_beyond_the_time_limit(shape: str) -> None:
    clock = TrainingClock(max_hours=1)
    clock.elapsed = 5400.0
    assert find_rates(clock, shape, 0, 1) == [0.0, 0.0]


def test_the_rate_of_a_resumed_run_is_that_of_the_optimizers_next_step() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    factors = RATE_FACTORS[SchedulerType("linear")]
    schedule = make_schedule(optimizer, factors, 0, 8, TrainingClock())
    schedule.last_epoch = 2  # as if loaded
    set_next_rates(schedule)
    assert optimizer.param_groups[0]["lr"] == 0.75


def test_the_speed_of_a_resumed_run_counts_its_own_steps() -> None:
    clock = TrainingClock()
    clock.on_train_begin(SimpleNamespace(), SimpleNamespace(global_step=10), None)
    assert clock.lap(12)[0] == 2


def test_a_new_run_counts_its_time_from_zero_and_a_resumed_one_goes_on() -> None:
    for step, expected in ((3, 1800.0), (0, 0.0)):
        clock = TrainingClock()
        clock.elapsed = 1800.0
        clock.on_train_begin(SimpleNamespace(), SimpleNamespace(global_step=step), None)
        assert clock.now() == pytest.approx(expected, abs=60)


def test_all_processes_count_the_time_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def broadcast(elapsed: list[float]) -> None:
        elapsed[0] = 1234.0

    monkeypatch.setattr(torch.distributed, "broadcast_object_list", broadcast)
    clock = TrainingClock()
    clock.on_step_begin(SimpleNamespace(world_size=2), SimpleNamespace(), None)
    assert clock.elapsed == 1234.0


@pytest.mark.parametrize(("elapsed", "step"), [(3600.0, 1), (0.0, 9)])
@pytest.mark.parametrize("strategy", ["no", "steps"])
def test_a_run_that_ends_is_evaluated_and_saved_if_it_is_at_all(
    elapsed: float, step: int, strategy: str
) -> None:
    clock = TrainingClock(max_hours=1)
    clock.elapsed = elapsed
    control = TrainerControl()
    arguments = SimpleNamespace(eval_strategy=strategy, save_strategy=strategy)
    clock.on_step_end(arguments, SimpleNamespace(global_step=step, max_steps=9), control)
    assert control.should_training_stop
    assert control.should_evaluate == control.should_save == (strategy == "steps")


def test_a_lap_is_the_steps_and_seconds_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 3.0, 7.0])
    monkeypatch.setattr(learning_rate, "time", SimpleNamespace(monotonic=lambda: next(now)))
    clock = TrainingClock()
    assert [clock.lap(10), clock.lap(30)] == [(10, 3.0), (20, 4.0)]


@pytest.mark.parametrize(
    ("optimizer", "num_steps", "expected"),
    [("adamw", 50_000, 1000), ("adamw", 300, 30), ("adamw", 9, 0), ("adagrad", 50_000, 0)],
)
def test_the_warm_up_is_at_most_a_tenth_of_a_run(
    optimizer: Optimizer, num_steps: int, expected: int
) -> None:
    assert choose_warmup(optimizer, None, num_steps) == expected


def test_a_given_warm_up_is_kept_and_one_as_long_as_the_run_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert choose_warmup("adamw", 0, 300) == 0
    assert choose_warmup("adamw", 299, 300) == 299
    assert not caplog.text
    assert choose_warmup("adamw", 300, 300) == 300
    assert "The 300 warm-up steps are not fewer than the 300 steps" in caplog.text

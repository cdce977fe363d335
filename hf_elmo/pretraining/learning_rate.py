"""Learning rate of pretraining: defaults, and schedules over steps or over --max-hours."""

import logging
import math
import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    SchedulerType,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

logger = logging.getLogger(__name__)

Optimizer = Literal["adamw", "adagrad"]
Schedule = Literal["cosine", "linear", "constant"]

WARMUP_STEPS = 1000  # of AdamW
# Factors of the learning rate for a completed share of the training. Unlike in transformers, the
# share includes the warm-up, and `max_hours` counts.
RATE_FACTORS: dict[SchedulerType, Callable[[float], float]] = {
    SchedulerType.COSINE: lambda done: (1 + math.cos(math.pi * done)) / 2,
    SchedulerType.LINEAR: lambda done: 1 - done,
    SchedulerType.CONSTANT_WITH_WARMUP: lambda _: 1.0,
}


def choose_warmup(optimizer: Optimizer, warmup_steps: int | None, num_steps: int) -> int:
    """Choose the number of warm-up steps; by default, at most a tenth of a run.

    Args:
        optimizer: Name of the optimiser.
        warmup_steps: Given number; None = the default.
        num_steps: Number of steps of the run.
    """
    if warmup_steps is None:
        return min(WARMUP_STEPS, num_steps // 10) if optimizer == "adamw" else 0
    if warmup_steps >= num_steps:
        logger.warning(
            "The %d warm-up steps are not fewer than the %d steps of training, so the learning "
            "rate stays below --learning-rate. Give a smaller number to --warmup-steps.",
            warmup_steps,
            num_steps,
        )
    return warmup_steps


class TrainingClock(TrainerCallback):
    """Measure the time of a run, also before a resume; end it at the last step or time limit.

    Attributes:
        elapsed: Seconds of training until the start of this step, equal in all processes.
    """

    def __init__(self, max_hours: float | None = None) -> None:
        self.elapsed = 0.0
        self._max_hours = max_hours
        self._start = self._last_lap = time.monotonic()
        self._last_step = 0

    def fraction(self) -> float:
        """Return the used share of the time limit; 0 without a limit."""
        return self.elapsed / (3600 * self._max_hours) if self._max_hours else 0.0

    def lap(self, step: int) -> tuple[int, float]:
        """Return the steps and the seconds since the last lap."""
        now = time.monotonic()
        lap = step - self._last_step, now - self._last_lap
        self._last_step, self._last_lap = step, now
        return lap

    def now(self) -> float:
        """Return the seconds of training so far, including the runs before a resume."""
        return time.monotonic() - self._start

    def on_train_begin(  # noqa: D102
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if not state.global_step:  # a new run
            self.elapsed = 0.0
        self._start = time.monotonic() - self.elapsed
        self.lap(state.global_step)

    def on_step_begin(  # noqa: D102
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        elapsed = [self.now()]
        if args.world_size > 1:
            torch.distributed.broadcast_object_list(elapsed)
        self.elapsed = elapsed[0]

    def on_step_end(  # noqa: D102
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.fraction() >= 1 or state.global_step >= state.max_steps:
            control.should_training_stop = True
            control.should_evaluate = args.eval_strategy != IntervalStrategy.NO
            control.should_save = args.save_strategy != SaveStrategy.NO


def make_schedule(
    optimizer: Any,
    shape: Callable[[float], float],
    num_warmup_steps: int,
    num_steps: int,
    clock: TrainingClock,
) -> LambdaLR:
    """Make the learning-rate schedule of an optimiser.

    Args:
        optimizer: Optimiser; the schedule multiplies its learning rate by two factors.
        shape: First factor, a function of the completed share of training, from `RATE_FACTORS`.
        num_warmup_steps: Number of steps in which the second factor rises to 1. If a tenth of the
            time limit is shorter, it rises in that time.
        num_steps: Number of steps of the training.
        clock: Clock of the time limit. The completed share is that of steps or of time, whichever
            is larger.
    """

    def factor(step: int) -> float:
        rise = max((step + 1) / max(1, num_warmup_steps), 10 * clock.fraction())
        done = max(step / num_steps, clock.fraction())
        return min(1.0, rise) * shape(min(1.0, done))

    return LambdaLR(optimizer, factor)


def set_next_rates(schedule: LambdaLR) -> None:
    """Set the learning rates of the next step: a resumed run may have another length."""
    rates = [
        rate * factor(schedule.last_epoch)
        for rate, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
    ]
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule._last_lr = rates

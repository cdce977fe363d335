"""A bound on the time that a training takes, over all its resumptions."""

import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

TIME_NAME = "cpu_seconds.txt"
SECONDS_PER_NOTE = 1.0


class TimeBound(TrainerCallback):
    """Count the processor time of a training, all threads together, and end it when it is over.

    The time is noted in a file after steps, so that what a killed process has used counts too. The
    step that goes over the bound is finished, and the model is scored once more: the best is kept.

    Args:
        folder: Where the file is; it is read if it is there.
        max_minutes: Minutes of all processes that have trained here; None = no bound. With
            several processes at once, the slowest one counts.
    """

    def __init__(self, folder: Path, max_minutes: float | None = None) -> None:
        self._path, self._max_minutes = folder / TIME_NAME, max_minutes
        self._start = time.process_time() - read_seconds(folder)
        self._noted = 0.0

    @property
    def seconds(self) -> float:
        """Processor time until now."""
        return time.process_time() - self._start

    def note(self) -> None:
        """Write the time down."""
        self._noted = self.seconds
        part = self._path.with_suffix(".part")
        part.write_text(f"{self._noted:.1f}\n", encoding="utf-8")
        part.replace(self._path)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Note the time about once a second, and end the training if it is over."""
        seconds = self.seconds
        if args.world_size > 1:  # or one process would wait for another that has stopped
            from accelerate.utils import gather_object

            seconds = max(gather_object([seconds]))
        if state.is_world_process_zero and seconds - self._noted > SECONDS_PER_NOTE:
            self.note()
        if self._max_minutes is not None and seconds > 60 * self._max_minutes:
            control.should_training_stop = True


def read_seconds(folder: Path) -> float:
    """Read the processor time that the trainings of a folder's model have used so far."""
    path = folder / TIME_NAME
    return float(path.read_text("utf-8")) if path.exists() else 0.0

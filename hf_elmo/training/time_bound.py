"""A limit on the processor time of a training run, including its earlier parts."""

import time
import warnings
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_elmo.files.output_file import write_file

TIME_NAME = "cpu_seconds.txt"
SECONDS_PER_NOTE = 1.0


class TimeBound(TrainerCallback):
    """Count the processor time of a training run, all threads together, and end it at the limit.

    The time is written to a file, so that the time of a killed process counts too. At the limit,
    the model is scored as at the end of an epoch, so it can become the best model.

    Args:
        folder: Folder of the file with the time.
        max_minutes: Limit for the sum of the times of all runs in this folder; None = no limit.
            If a run has several processes, the process with the most processor time counts.
    """

    def __init__(self, folder: Path, max_minutes: float | None = None) -> None:
        self._folder, self._max_minutes = folder, max_minutes
        self._start = time.process_time() - read_seconds(folder)
        self._noted = 0.0

    def note(self) -> None:
        """Write the used time to the file."""
        self._noted = time.process_time() - self._start
        write_file(self._folder / TIME_NAME, f"{self._noted:.1f}\n")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write the time about once a second, and end the run at the limit."""
        seconds = time.process_time() - self._start
        if args.world_size > 1:  # or a process would wait for a process that has stopped
            from accelerate.utils import gather_object

            seconds = max(gather_object([seconds]))
        if state.is_world_process_zero and seconds - self._noted > SECONDS_PER_NOTE:
            self.note()
        if self._is_over(seconds):
            control.should_training_stop = True

    def is_used_up(self) -> bool:
        """Return whether the earlier runs in the folder reached the limit."""
        return self._is_over(read_seconds(self._folder))

    def _is_over(self, seconds: float) -> bool:
        return self._max_minutes is not None and seconds > 60 * self._max_minutes


def read_seconds(folder: Path) -> float:
    """Read the processor time that the training run of a folder has used so far.

    Warns if the file is damaged; the time is then counted from 0.
    """
    path = folder / TIME_NAME
    try:
        return float(path.read_text("utf-8")) if path.exists() else 0.0
    except ValueError:
        message = f"{path} is damaged: the time of earlier runs is not counted."
        warnings.warn(message, stacklevel=2)
        return 0.0

"""Find, write and delete the checkpoints of a training run; never touch other folders."""

import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

from hf_elmo.training.resume_checks import is_checkpoint, list_checkpoints, read_json

POSITION_NAME = "stream.json"
STATE_NAME = "bilm_state_{rank}.safetensors"
TRAINED_NAME = "trained_weights.safetensors"  # weights, if the model of a checkpoint is an average
FILES = (SAFE_WEIGHTS_NAME, OPTIMIZER_NAME, SCHEDULER_NAME, POSITION_NAME)


class CheckpointingTrainer(Trainer):
    """Trainer that writes complete checkpoints, and deletes only checkpoints of its own run.

    Trainer itself deletes every folder named `checkpoint-*`, so it gets no limit. The newest
    `save_total_limit` checkpoints are kept, including the best one.
    """

    def __init__(self, model: Any, args: TrainingArguments, **options: Any) -> None:
        self._num_kept, args.save_total_limit = args.save_total_limit, None
        super().__init__(model, args, **options)
        self.add_callback(_CheckPlaces())

    def list_files(self, checkpoint: Path) -> list[str]:
        """List the files of a checkpoint, except Trainer's state."""
        raise NotImplementedError

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            _begin_checkpoint(folder)
        self.accelerator.wait_for_everyone()
        try:
            super()._save_checkpoint(model, trial)
        except RuntimeError as error:  # torch.save if the disk is full
            reason = str(error).partition("\n")[0]
            raise OSError(
                f"Expected to write {folder}, got: {reason}. Is the disk full? Make room, then "
                "continue with --resume."
            ) from error
        if self.args.should_save:
            _find_marker(folder).unlink()
            self._delete_old_checkpoints()

    def _delete_old_checkpoints(self) -> None:
        """Delete complete checkpoints of this run, the oldest first."""
        if self._num_kept is None:
            return
        found = list_checkpoints(Path(str(self.args.output_dir)))
        steps = [step for step, path in found.items() if not _find_missing(path, self.list_files)]
        best = Path(self.state.best_model_checkpoint or "").name
        protected = {step for step in steps if found[step].name == best} | set(steps[-1:])
        others = [step for step in steps if step not in protected]
        for step in others[: max(0, len(steps) - max(self._num_kept, len(protected)))]:
            shutil.rmtree(found[step], ignore_errors=True)


class _CheckPlaces(TrainerCallback):
    """Refuse to train if a future checkpoint would overwrite a folder of the user."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        for path in Path(str(args.output_dir)).glob("checkpoint-*"):
            digits = path.name.removeprefix("checkpoint-")
            if digits.isdecimal() and state.global_step < int(digits) <= state.max_steps:
                _check_place(path)


def _find_marker(checkpoint: Path) -> Path:
    """Return the path of the marker that exists until a checkpoint is complete."""
    return checkpoint / f".writing-{checkpoint.name}"


def _check_place(checkpoint: Path) -> bool:
    """Return whether this run has started to write a checkpoint of this name.

    Raises:
        ValueError: If the folder contains other files.
    """
    if _find_marker(checkpoint).exists() or is_checkpoint(checkpoint):
        return True
    if checkpoint.exists() and not (checkpoint.is_dir() and not any(checkpoint.iterdir())):
        raise ValueError(
            f"Expected a checkpoint of this run in {checkpoint}, or nothing, got other files. "
            "Rename or move it: a checkpoint is to be written there."
        )
    return False


def _begin_checkpoint(folder: Path) -> None:
    """Make the folder of a checkpoint; replace incomplete files of this run."""
    if _check_place(folder):
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _find_marker(folder).touch()


def _find_missing(checkpoint: Path, list_files: Callable[[Path], Iterable[str]]) -> list[str]:
    return [name for name in list_files(checkpoint) if not (checkpoint / name).is_file()]


def find_last_checkpoint(folder: Path, list_files: Callable[[Path], Iterable[str]]) -> Path | None:
    """Find the newest complete checkpoint of a run; delete incomplete ones.

    Warns about each deleted or skipped checkpoint.

    Args:
        folder: Folder of the run.
        list_files: Lists the files of a checkpoint, except Trainer's state.

    Returns:
        The folder of the checkpoint; None = no checkpoint.
    """
    for path in folder.glob("checkpoint-*"):
        if _find_marker(path).exists():
            message = f"Deleting {path}: the run ended while it was being written."
            warnings.warn(message, stacklevel=2)
            shutil.rmtree(path, ignore_errors=True)
    for path in reversed(list_checkpoints(folder).values()):
        missing = _find_missing(path, list_files)
        if not missing:
            return path
        warnings.warn(f"Skipping {path}: it lacks {', '.join(missing)}.", stacklevel=2)
    return None


def list_files(checkpoint: Path, num_processes: int) -> list[str]:
    """List the files that a pretraining checkpoint needs for a number of processes.

    Raises:
        ValueError: If another number of processes wrote it.
    """
    position = read_json(checkpoint / POSITION_NAME) or {}
    before = position.get("num_processes", num_processes)
    if before != num_processes:
        raise ValueError(
            f"Expected {before} processes, as many as wrote {checkpoint}, got {num_processes}: "
            f"each continues with its own rows. Resume by torchrun with {before} in all, or start "
            f"a new run from the model: --from {checkpoint}, and another --output."
        )
    states = [STATE_NAME.format(rank=rank) for rank in range(num_processes)]
    return [*FILES, *states, *([TRAINED_NAME] if position.get("is_averaged") else [])]

"""Find, write and delete the checkpoints of a training run; never touch other folders."""

import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

from hf_elmo.language_model.vocabulary import VOCABULARY_NAME
from hf_elmo.training.resume_checks import is_checkpoint, list_checkpoints, read_json

POSITION_NAME = "stream.json"
STATE_NAME = "bilm_state_{rank}.safetensors"
TRAINED_NAME = "trained_weights.safetensors"  # written if the saved model is an average
FILES = (SAFE_WEIGHTS_NAME, OPTIMIZER_NAME, SCHEDULER_NAME, POSITION_NAME, VOCABULARY_NAME)

Trained = TypeVar("Trained", bound=nn.Module)


class CheckpointingTrainer(Trainer, Generic[Trained]):
    """Trainer whose runs resume exactly, with an optional average of the weights.

    An incomplete checkpoint is never used. Only the run's own checkpoints are deleted: Trainer
    itself would delete every folder named `checkpoint-*`, so it gets no limit. The best and the
    newest are always kept. The oldest others are deleted if there are more than `save_total_limit`.

    Args:
        model: The model that Trainer runs.
        args: Trainer's arguments.
        trained: The model that is saved, which may be a part of `model`.
        ema: Decay of a moving average of the weights, updated after each step. The average is the
            model that is evaluated and saved; None = no average.
        **options: Further arguments of Trainer.
    """

    advice_after_divergence = ""

    def __init__(
        self,
        model: Any,
        args: TrainingArguments,
        *,
        trained: Trained,
        ema: float | None,
        **options: Any,
    ) -> None:
        self._num_kept, args.save_total_limit = args.save_total_limit, None
        if args.n_gpu > 1:  # or Trainer would use DataParallel; torchrun starts a process per GPU
            args._n_gpu = 1
        super().__init__(model, args, **options)
        self._trained = trained
        self._average: AveragedModel | None = None
        self.add_callback(_BeginRun())
        if ema is not None:
            self._average = AveragedModel(trained, multi_avg_fn=get_ema_multi_avg_fn(ema))
            self._average.to(args.device)
            self.add_callback(_Averaging(trained, self._average))

    def list_files(self, checkpoint: Path) -> list[str]:
        """List the files that a checkpoint needs, in addition to Trainer's state."""
        raise NotImplementedError

    def restore_position(self, checkpoint: Path) -> bool:
        """Restore the position of a run; return whether the run is at its end."""
        raise NotImplementedError

    @property
    def kept_model(self) -> Trained:
        """The model that is evaluated and saved: the average, if there is one."""
        average = self._average
        return self._trained if average is None else cast(Trained, average.module)

    def train(  # type: ignore[override]  # no search for hyperparameters
        self, resume_from_checkpoint: Path | str | bool | None = None
    ) -> None:
        """Train to the end of the run.

        Args:
            resume_from_checkpoint: Checkpoint to continue from; True = the last complete
                checkpoint, or a new run if no checkpoint exists.
        """
        if resume_from_checkpoint is True:
            with self.args.main_process_first():
                resume_from_checkpoint = find_last_checkpoint(
                    Path(str(self.args.output_dir)), self.list_files
                )
        if not resume_from_checkpoint:
            super().train()
            return
        checkpoint = Path(resume_from_checkpoint)
        self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        ends_early = self.restore_early_stopping()
        if not self.restore_position(checkpoint) and not ends_early:
            super().train(str(checkpoint))
            return
        # The run is at its end. Trainer is not called, because it would take one more step.
        best = self._find_best(checkpoint.parent) if self.args.load_best_model_at_end else None
        self._load_final_model(best or checkpoint)

    def restore_early_stopping(self) -> bool:
        """Restore the count of evaluations without a gain; return whether it ends the run."""
        states: Any = self.state.stateful_callbacks
        ends = False
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback):
                # Trainer needs this entry when it saves; an earlier part of the run may lack it.
                stored = states.setdefault(type(callback).__name__, callback.state())
                counter = stored["attributes"]["early_stopping_patience_counter"]
                callback.early_stopping_patience_counter = counter
                ends |= counter >= callback.early_stopping_patience
        return ends

    def report(self, metrics: dict[str, float]) -> dict[str, float]:
        """Log metrics of an evaluation and pass them to the callbacks; return them."""
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        weights = load_file(folder / SAFE_WEIGHTS_NAME)
        self._trained.load_state_dict(weights)
        is_average = (folder / TRAINED_NAME).exists()
        if is_average:
            self._trained.load_state_dict(load_file(folder / TRAINED_NAME), strict=False)
        if self._average is not None:
            self._average.module.load_state_dict(weights)
            # Only 0 is special: then the next step starts a new average.
            self._average.n_averaged.fill_(int(is_average))

    def _find_best(self, folder: Path) -> Path | None:
        """Find the best checkpoint in the run's folder, which may have moved; None = none left."""
        if self.state.best_model_checkpoint is None:
            return None
        best = folder / Path(self.state.best_model_checkpoint).name
        trained = [TRAINED_NAME] if (best / TRAINED_NAME).exists() else []
        if all(is_complete(best / name) for name in (SAFE_WEIGHTS_NAME, *trained)):
            return best
        warnings.warn(
            f"The best checkpoint, {best}, is missing or damaged. The model is that of the last "
            "checkpoint.",
            stacklevel=2,
        )
        return None

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _name_checkpoint(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _name_checkpoint(checkpoint):
            super()._load_rng_state(checkpoint)

    def _load_best_model(self) -> None:
        best = self._find_best(Path(str(self.args.output_dir)))
        if best is not None:
            self._load_final_model(best)

    def _load_final_model(self, checkpoint: Path) -> None:
        self._load_from_checkpoint(str(checkpoint))
        if self._average is not None:
            self._trained.load_state_dict(self._average.module.state_dict())
            self._average = None

    def check_weights(self) -> None:
        """Refuse to save a model that has diverged."""
        if not all(bool(x.isfinite().all()) for x in self.kept_model.parameters()):
            raise ValueError(
                f"Expected finite weights after step {self.state.global_step}, got NaN or "
                "infinity: the training has diverged. Start a new run with a lower --learning-rate "
                f"and another --output.{self.advice_after_divergence}"
            )

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.check_weights()  # before the checkpoint replaces an older one
        folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            _begin_checkpoint(folder)
        self.accelerator.wait_for_everyone()
        try:
            super()._save_checkpoint(model, trial)
            if self.args.should_save and self._average is not None:
                named = self._trained.named_parameters()
                weights = {name: x.detach() for name, x in named if x.requires_grad}
                save_file(weights, folder / TRAINED_NAME)
        except (OSError, RuntimeError, SafetensorError) as error:  # RuntimeError: of torch.save
            reason = str(error).partition("\n")[0]
            raise OSError(
                f"Expected to write {folder}, got: {reason}. Is the disk full? Make room, then "
                "continue with --resume."
            ) from error
        if self.args.should_save:
            _find_marker(folder).unlink()
            self._delete_old_checkpoints()

    def _delete_old_checkpoints(self) -> None:
        """Delete old complete checkpoints beyond the limit; keep the best and the newest."""
        if self._num_kept is None:
            return
        found = list_checkpoints(Path(str(self.args.output_dir)))
        steps = [step for step, path in found.items() if not _find_missing(path, self.list_files)]
        best = Path(self.state.best_model_checkpoint or "").name
        protected = {step for step in steps if found[step].name == best} | set(steps[-1:])
        others = [step for step in steps if step not in protected]
        for step in others[: max(0, len(steps) - self._num_kept)]:
            _delete_checkpoint(found[step], newest=found[steps[-1]])


def _delete_checkpoint(checkpoint: Path, newest: Path) -> None:
    """Delete the files that the newest checkpoint has too; keep the user's."""
    with suppress(OSError):
        for path in newest.iterdir():
            (checkpoint / path.name).unlink(missing_ok=True)
        checkpoint.rmdir()


@contextmanager
def _name_checkpoint(checkpoint: str | None) -> Iterator[None]:
    """Name the checkpoint if its files cannot be read, although they are not cut off."""
    try:
        yield
    except (torch.OutOfMemoryError, ValueError):  # ValueError: weights of another model
        raise
    except Exception as error:  # torch.load raises many kinds
        raise OSError(
            f"Expected to load {checkpoint}, got: {error}. If it is damaged, delete this folder: "
            "--resume then continues from the checkpoint before it."
        ) from error


class _Averaging(TrainerCallback):
    """Update the average of the weights after each step."""

    def __init__(self, model: nn.Module, average: AveragedModel) -> None:
        self._model, self._average = model, average

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._average.update_parameters(self._model)


class _BeginRun(TrainerCallback):
    """Use this run's intervals, and refuse to overwrite a folder of the user by a checkpoint."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        state.compute_steps(args, state.max_steps)  # a loaded state has those of the earlier run
        for path in Path(str(args.output_dir)).glob("checkpoint-*"):
            digits = path.name.removeprefix("checkpoint-")
            if digits.isdecimal() and state.global_step < int(digits) <= state.max_steps:
                _check_place(path)


def _find_marker(checkpoint: Path) -> Path:
    """Return the path of the marker file that exists until a checkpoint is complete."""
    return checkpoint / f".writing-{checkpoint.name}"


def _check_place(checkpoint: Path) -> None:
    """Refuse a folder of the user where a checkpoint is to be written."""
    if _find_marker(checkpoint).exists() or is_checkpoint(checkpoint):
        return
    if checkpoint.exists() and not (checkpoint.is_dir() and not any(checkpoint.iterdir())):
        raise ValueError(
            f"Expected a checkpoint of this run in {checkpoint}, or nothing, got other files. "
            "Rename or move it: a checkpoint is to be written there."
        )


def _begin_checkpoint(folder: Path) -> None:
    """Make the folder of a checkpoint; begin to replace a checkpoint that is already there."""
    _check_place(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _find_marker(folder).touch()
    for name in (SAFE_WEIGHTS_NAME, TRAINED_NAME):  # other programs may have mapped the weights
        (folder / name).unlink(missing_ok=True)


def _find_missing(checkpoint: Path, list_files: Callable[[Path], Iterable[str]]) -> list[str]:
    return [name for name in list_files(checkpoint) if not is_complete(checkpoint / name)]


def is_complete(path: Path) -> bool:
    """Return whether a file of a checkpoint exists, and is not empty or cut off.

    A power failure can leave such files. Only the ends of archives are read, so this is fast.
    """
    if not path.is_file() or not path.stat().st_size:
        return False
    if path.suffix in (".pt", ".pth"):  # of torch.save
        return zipfile.is_zipfile(path)
    if path.suffix == ".json":
        return read_json(path) is not None
    if path.suffix == ".txt":
        return path.read_bytes().endswith(b"\n")
    try:
        with safe_open(path, "np"):
            return True
    except SafetensorError:
        return False


def list_random_states(checkpoint: Path, num_processes: int) -> list[str]:
    """List the files with the states of the random generators, as Trainer names them.

    If another number of processes wrote the checkpoint, no file is listed: new states are drawn.
    """
    names = [f"rng_state_{rank}.pth" for rank in range(num_processes)]
    names = names if num_processes > 1 else ["rng_state.pth"]
    found = {path.name for path in checkpoint.glob("rng_state*.pth")}
    return [] if found - set(names) else names


def find_last_checkpoint(folder: Path, list_files: Callable[[Path], Iterable[str]]) -> Path | None:
    """Find the newest complete checkpoint of a run, if any; delete unfinished checkpoints.

    Warns about each deleted or skipped checkpoint. `list_files` lists the files that a
    checkpoint needs, except Trainer's state. A damaged checkpoint is skipped.
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
        message = f"Skipping {path}: missing or damaged: {', '.join(missing)}."
        warnings.warn(message, stacklevel=2)
    return None


def list_files(checkpoint: Path, num_processes: int) -> list[str]:
    """List the files that a pretraining checkpoint needs for a number of processes.

    Raises:
        ValueError: If another number of processes wrote the checkpoint.
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
    trained = [TRAINED_NAME] if position.get("is_averaged") else []
    return [*FILES, *states, *list_random_states(checkpoint, num_processes), *trained]

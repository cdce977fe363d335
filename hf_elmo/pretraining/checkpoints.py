"""Which checkpoint to go on from: the last one that is whole."""

import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

POSITION_NAME = "stream.json"
STATE_NAME = "bilm_state_{rank}.safetensors"
TRAINED_NAME = "trained_weights.safetensors"  # where the model of a checkpoint is an average
FILES = (SAFE_WEIGHTS_NAME, OPTIMIZER_NAME, SCHEDULER_NAME, POSITION_NAME)


def find_last_checkpoint(folder: Path, list_files: Callable[[Path], Iterable[str]]) -> Path | None:
    """Find the newest checkpoint that is whole, with a warning of each newer one that is not.

    Those that were never finished, since the training was killed while it wrote them, are deleted:
    Trainer would count them among those to keep.

    Args:
        folder: Where the checkpoints are.
        list_files: Tells what a checkpoint needs, beside Trainer's state.

    Returns:
        Its folder, or None if there is none.
    """
    found = [(int(path.name.partition("-")[2]), path) for path in _list_checkpoints(folder)]
    for _, path in sorted(found, reverse=True):
        missing = [name for name in list_files(path) if not (path / name).is_file()]
        # Trainer writes its state last: it tells that all is written.
        is_unfinished = _read(path / TRAINER_STATE_NAME) is None
        if not missing and not is_unfinished:
            return path
        missing += [TRAINER_STATE_NAME] * is_unfinished
        warnings.warn(
            f"Going on from before {path}, which is not whole: it lacks {', '.join(missing)}."
            + (" It was being written when the training ended, and is deleted." * is_unfinished),
            stacklevel=2,
        )
        if is_unfinished:
            shutil.rmtree(path, ignore_errors=True)
    return None


def _list_checkpoints(folder: Path) -> list[Path]:
    return [path for path in folder.glob("checkpoint-*") if re.search(r"-\d+$", path.name)]


def list_files(checkpoint: Path, num_processes: int) -> list[str]:
    """List what a checkpoint of pretraining needs, to go on in so many processes.

    Raises:
        ValueError: If another number of processes wrote it.
    """
    position = _read(checkpoint / POSITION_NAME) or {}
    before = position.get("num_processes", num_processes)
    if before != num_processes:
        raise ValueError(
            f"Expected {before} processes, as many as wrote {checkpoint}, got {num_processes}: "
            f"each goes on with its own rows. Resume by torchrun with {before} in all, or start "
            f"anew from the model: --from {checkpoint}, and another --output."
        )
    states = [STATE_NAME.format(rank=rank) for rank in range(num_processes)]
    return [*FILES, *states, *([TRAINED_NAME] if position.get("is_averaged") else [])]


def _read(path: Path) -> Any:
    """Read a file of JSON; None if it is not there or breaks off."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None

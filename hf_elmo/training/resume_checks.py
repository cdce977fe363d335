"""Refuse to overwrite a training run, or to resume it with different options."""

import json
from pathlib import Path
from typing import Any

import typer
from transformers.trainer import TRAINER_STATE_NAME

from hf_elmo.files.output_file import write_file
from hf_elmo.files.output_lock import get_rank

SETTINGS_NAME = "settings.json"
MODEL_FILES = ("config.json", "*.safetensors", "*.bin")


def name_option(name: str) -> str:
    """Return an option as a user types it."""
    return f"--{name.replace('_', '-')}"


def _show(name: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return name_option(name) if value else f"no {name_option(name)}"
    return f"{name_option(name)} {value}"


def read_json(path: Path) -> Any:
    """Read a JSON file; return None if it is missing or cut off."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is a checkpoint: its name has the step of its `trainer_state.json`.

    A copy under another name, made by the user, is not a checkpoint of the run.
    """
    state = read_json(folder / TRAINER_STATE_NAME)
    step = state.get("global_step") if isinstance(state, dict) else None
    return type(step) is int and folder.name == f"checkpoint-{step}"


def list_checkpoints(folder: Path) -> dict[int, Path]:
    """List the checkpoints of a run by their steps, the oldest first."""
    found = [path for path in folder.glob("checkpoint-*") if is_checkpoint(path)]
    steps = {int(path.name.removeprefix("checkpoint-")): path for path in found}
    return dict(sorted(steps.items()))


def check_output(folder: Path, *, resume: bool) -> None:
    """Refuse a folder with files that a run would overwrite; report if there is nothing to resume.

    Raises:
        ValueError: If the folder holds checkpoints and `resume` is false, or if it holds a model
            without checkpoints.
    """
    if list_checkpoints(folder):
        if not resume:
            raise ValueError(
                f"{folder} holds checkpoints of a training. Go on with --resume, or choose another "
                "folder."
            )
    elif any(path for pattern in MODEL_FILES for path in folder.glob(pattern)):
        raise ValueError(f"{folder} holds a model that would be lost: choose another folder.")
    elif resume and get_rank() == 0:
        typer.echo(f"Starting a new run: there is no checkpoint in {folder}.", err=True)


def hold_to_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a new run, or check that a resumed run has the same settings.

    A run without a checkpoint is new. With several processes, only the first process does this.

    Args:
        folder: Folder of the run.
        settings: Options and their values. Only a path's last part counts, because files may move.

    Raises:
        ValueError: If a run is resumed with another value of an option.
    """
    if get_rank() > 0:
        return
    path = folder / SETTINGS_NAME
    text = json.dumps(settings, indent=2, default=lambda value: Path(value).name)
    if path.exists() and list_checkpoints(folder):
        before = json.loads(path.read_text("utf-8"))
        for name, value in json.loads(text).items():
            if name in before and before[name] != value:  # older versions lack some
                raise ValueError(
                    f"Expected {_show(name, before[name])}, as when the run in {folder} "
                    f"started, got {_show(name, value)}. Give the same options to resume it, or "
                    "another --output."
                )
    write_file(path, text)

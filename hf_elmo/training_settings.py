"""What a training finds in its folder, and what it was begun with: it goes on with the same."""

import json
from pathlib import Path
from typing import Any

from transformers.utils import SAFE_WEIGHTS_NAME

from .output_lock import get_rank

SETTINGS_NAME = "settings.json"


def name_option(name: str) -> str:
    """Return an option as it is typed."""
    return f"--{name.replace('_', '-')}"


def _show(name: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return name_option(name) if value else f"no {name_option(name)}"
    return f"{name_option(name)} {value}"


def check_output(folder: Path, *, resume: bool) -> None:
    """Refuse a folder where a training would replace what it has not made.

    Raises:
        ValueError: If it holds checkpoints and the training does not go on, or a model alone.
    """
    if any(folder.glob("checkpoint-*")):
        if not resume:
            raise ValueError(
                f"{folder} holds checkpoints of a training. Go on with --resume, or choose another "
                "folder."
            )
    elif (folder / SAFE_WEIGHTS_NAME).exists():
        raise ValueError(f"{folder} holds a model that would be lost: choose another folder.")


def hold_to_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Note the settings of a training, or see that they are those that it was begun with.

    It begins anew where there is no checkpoint. Of several processes, the first one does this.

    Args:
        folder: Of the training.
        settings: Options and their values; of a path its last name, as files may be moved.

    Raises:
        ValueError: If a training goes on with another value of an option.
    """
    if get_rank() > 0:
        return
    path = folder / SETTINGS_NAME
    text = json.dumps(settings, indent=2, default=lambda value: Path(value).name)
    if path.exists() and any(folder.glob("checkpoint-*")):
        before = json.loads(path.read_text("utf-8"))
        for name, value in json.loads(text).items():
            if before.get(name) != value:
                raise ValueError(
                    f"Expected {_show(name, before.get(name))}, with which the training in "
                    f"{folder} was begun, got {_show(name, value)}. Give the same options to go "
                    "on, or another --output."
                )
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)

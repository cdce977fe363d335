"""What a training was begun with, so that it goes on with the same."""

import json
from pathlib import Path
from typing import Any

from .output_lock import get_rank

SETTINGS_NAME = "settings.json"


def name_option(name: str) -> str:
    """Return an option as it is typed."""
    return f"--{name.replace('_', '-')}"


def hold_to_settings(folder: Path, settings: dict[str, Any], *, is_new: bool) -> None:
    """Note the settings of a training, or see that they are those that it was begun with.

    Of several processes, the first one does.

    Args:
        folder: Of the training.
        settings: Options and their values, as JSON has them.
        is_new: Whether the training begins anew, whatever was noted.

    Raises:
        ValueError: If a training goes on with another value of an option.
    """
    if get_rank() > 0:
        return
    path = folder / SETTINGS_NAME
    if not is_new and path.exists():
        before = json.loads(path.read_text("utf-8"))
        for name, value in settings.items():
            if before.get(name) != value:
                raise ValueError(
                    f"Expected {name_option(name)} {before.get(name)}, with which the training in "
                    f"{folder} was begun, got {value}. Give the same options to go on, or another "
                    "--output."
                )
    part = path.with_suffix(".part")
    part.write_text(json.dumps(settings, indent=2), encoding="utf-8")
    part.replace(path)

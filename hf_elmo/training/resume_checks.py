"""Refuse to overwrite a training run, or to resume it with different options."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from torch import distributed
from transformers.trainer import TRAINER_STATE_NAME

from hf_elmo.files.output_file import write_file

from .time_bound import TIME_NAME

SETTINGS_NAME = "settings.json"
# Files that every run writes, and files that it writes before its first checkpoint.
MODEL_FILES = (
    *("config.json", "tokenizer_config.json", "char_vocab.json", "word_vocab.json"),
    *("*.safetensors", "*.bin"),
)
START_FILES = (SETTINGS_NAME, TIME_NAME)
HEAD_BYTES = 2**26
NAMES = " names"  # end of the key of a description of names
CONTENTS = "contents"


def get_rank() -> int:
    """Return the rank of this process in `torch.distributed`, even before its initialization."""
    is_initialized = distributed.is_initialized()
    rank = os.environ.get("RANK", "")
    return distributed.get_rank() if is_initialized else int(rank) if rank.isdecimal() else 0


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


def check_output(folder: Path, *, resume: bool, others: tuple[str, ...] = ()) -> None:
    """Refuse a folder with files that a run would overwrite; report if there is nothing to resume.

    Args:
        folder: Output folder of the run.
        resume: Whether the run continues one in this folder.
        others: Files that the run writes besides its settings, the model and its tokenizer.

    Raises:
        ValueError: If the folder holds checkpoints and `resume` is false, or if it holds files of
            others, or a model without checkpoints, that the run would replace.
        OSError: If the name of the folder is not UTF-8.
    """
    if list_checkpoints(folder):
        if not resume:
            raise ValueError(
                f"{folder} holds checkpoints of a training. Go on with --resume, or choose another "
                "folder."
            )
        return
    patterns = MODEL_FILES + START_FILES + others
    found = sorted(path.name for pattern in patterns for path in folder.glob(pattern))
    settings = read_json(folder / SETTINGS_NAME)  # last: the first process may write it meanwhile
    if isinstance(settings, dict) and {"seed", "batch_size"} <= settings.keys():  # a run's own
        found = [name for name in found if name not in START_FILES]
    if found:
        raise ValueError(f"{folder} holds {found[0]}, which would be lost: choose another folder.")
    if resume and get_rank() == 0:
        typer.echo(f"Starting a new run: there is no checkpoint in {folder}.", err=True)


def fingerprint(path: Path) -> str | None:
    """Describe a file, or a model's folder, by its size and the digest of its first 64 MiB.

    Returns:
        The description; None = not a file or folder, for example a pipe or a name on the Hub.
    """
    if path.is_dir():
        files = [
            file for suffix in ("json", "safetensors", "bin") for file in path.glob(f"*.{suffix}")
        ]
        return ", ".join(f"{file.name}: {fingerprint(file)}" for file in sorted(files))
    if not path.is_file():
        return None
    with path.open("rb") as file:
        digest = hashlib.blake2b(file.read(HEAD_BYTES), digest_size=8)
    return f"{path.stat().st_size} bytes, {digest.hexdigest()}"


def cut_path(name: str) -> Path | str:
    """Return a local file or folder as a path, so that it may move; keep a name on the Hub."""
    path = Path(name)
    return path if path.exists() or path.is_absolute() else name


def hold_to_settings(
    folder: Path, settings: dict[str, Any], contents: Mapping[str, str | int | list[int] | None]
) -> None:
    """Write the settings of a new run, or check that a resumed run has the same settings.

    A run without a checkpoint is new. With several processes, only the first process does this.

    Args:
        folder: Folder of the run.
        settings: Options and their values. Only a path's last part counts, because files may move.
        contents: Options and descriptions of the files that they name.

    Raises:
        ValueError: If a run is resumed with another value of an option, or with other files.
    """
    if get_rank() > 0:
        return
    path = folder / SETTINGS_NAME
    held = settings | {CONTENTS: contents}
    text = json.dumps(held, indent=2, default=lambda value: Path(value).name)
    if path.exists() and list_checkpoints(folder):
        before = read_json(path)  # older versions lack some
        if not isinstance(before, dict):
            raise ValueError(
                f"Expected the options of the run in {path}, but this file is damaged. Delete it "
                "to resume without a comparison of the options."
            )
        for name, value in json.loads(text).items():
            if name != CONTENTS and before.get(name, value) != value:
                raise ValueError(
                    f"Expected {_show(name, before[name])}, as when the run in {folder} "
                    f"started, got {_show(name, value)}. Give the same options to resume it, or "
                    "another --output."
                )
        for name, value in before.get(CONTENTS, {}).items():
            if name.endswith(NAMES) and contents.get(name) != value:
                raise ValueError(
                    f"Expected the files of {name_option(name.removesuffix(NAMES))} with the names "
                    f"and the order that they had when the run in {folder} started."
                )
            if contents.get(name) != value:
                raise ValueError(
                    f"Expected {name_option(name)} with the content that it had when the run in "
                    f"{folder} started ({value}), got another one ({contents.get(name)}). Use the "
                    "same files to resume it, or start a new run with another --output."
                )
    folder.mkdir(parents=True, exist_ok=True)
    write_file(path, text)

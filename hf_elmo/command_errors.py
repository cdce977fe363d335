"""One style of error for all commands: `Error: ...` on stderr, exit code 1, no traceback."""

import io
import os
import re
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import typer
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ADD_RESUME = "Add --resume to continue from the last checkpoint in the output folder, if any."
AFTER_INTERRUPT = {  # how to continue, by command
    "embed": "Run the same command again to continue: complete parts are in OUTPUT.partial.",
    "pretrain": ADD_RESUME,
    "train": ADD_RESUME,
}


def run_app(app: typer.Typer) -> None:
    """Run a command line: output to a file is UTF-8, and only the commands expand patterns."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            is_chosen = stream.isatty() or "PYTHONIOENCODING" in os.environ
            encoding = stream.encoding if is_chosen else "utf-8"
            stream.reconfigure(encoding=encoding, errors="backslashreplace")
    app(windows_expand_args=False)


def report_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: an error that the user can correct ends it with a message."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        if sys.stderr is None:  # closed (`2>&-`); progress bars would fail
            sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (open until the process ends)
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            if command.__name__ in AFTER_INTERRUPT:
                typer.echo(f"\nInterrupted. {AFTER_INTERRUPT[command.__name__]}", err=True)
            raise
        except BrokenPipeError:
            raise  # from `... | head`; typer then exits without a message
        except StrictDataclassError as error:  # of a configuration; its cause has a clear message
            _fail(str(error.__cause__ or error))
        except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
            _fail(str(error))

    return run


def escape_controls(text: str) -> str:
    """Escape control characters, which could steer the terminal when a file's text is printed."""
    return CONTROLS.sub(lambda match: repr(match[0])[1:-1], text)


def _fail(message: str) -> NoReturn:
    typer.echo(f"Error: {escape_controls(message)}", err=True)
    raise typer.Exit(1)

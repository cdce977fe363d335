"""Processes that end by SIGKILL just before a chosen change of the files in a folder."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PRELOADED = ["convert.conversion"]  # what takes seconds to import, once for all processes
CHANGES = {
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
}


def run_until_change(
    number: int, folder: Path, function: Callable[..., object], *arguments: Any, **keywords: Any
) -> bool:
    """Run a function in a process of its own that is killed before its `number`-th change.

    Changes are the opening of files to write and what moves, makes or removes entries, in the
    folder; reading and the bytes that are written are none.

    Args:
        number: Which change is not made, from 0.
        folder: Where changes count.
        function: What to run, of a module that the process can import.
        arguments: Its arguments.
        keywords: Those with names.

    Returns:
        Whether the function came to its end: it has fewer changes.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_run, args=(number, folder, function, arguments, keywords))
    process.start()
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"Expected the process to end or to be killed, got {process.exitcode}.")
    return process.exitcode == 0


def _run(
    number: int,
    folder: Path,
    function: Callable[..., object],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> None:
    changes = 0

    def watch(event: str, details: tuple[Any, ...]) -> None:
        nonlocal changes
        is_change = event in CHANGES or (event == "open" and _writes(*details[1:3]))
        if is_change and _lies_in(folder, details):
            if changes == number:
                os.kill(os.getpid(), signal.SIGKILL)
            changes += 1

    sys.addaudithook(watch)
    function(*arguments, **keywords)


def _writes(mode: str | None, flags: int) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _lies_in(folder: Path, details: tuple[Any, ...]) -> bool:
    names = (os.fsdecode(item) for item in details if isinstance(item, str | bytes | os.PathLike))
    # A name beside a folder's descriptor, as shutil.rmtree removes entries, has no folder in it.
    return any(name.startswith(str(folder)) or os.sep not in name for name in names)

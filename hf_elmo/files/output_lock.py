"""Locks of outputs, so that only one process at a time writes each output."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import distributed

LOCK = ".lock"


def get_rank() -> int:
    """Return the rank of this process in `torch.distributed`, even before its initialization."""
    is_initialized = distributed.is_initialized()
    rank = os.environ.get("RANK", "")
    return distributed.get_rank() if is_initialized else int(rank) if rank.isdecimal() else 0


@contextmanager
def lock_output(output: Path, lock: Path, *, is_shared: bool = False) -> Iterator[None]:
    """Lock an output, so that no other process writes it meanwhile.

    Args:
        output: The file or folder, which may not exist yet.
        lock: A file that exists only while the output is locked. Its folder is made if it is
            missing, and a new folder is removed at the end if it is empty.
        is_shared: Whether the processes of `torch.distributed` write the output together, so that
            the process of rank 0 locks it for all.

    Raises:
        BlockingIOError: If another process has locked the output.
        FileExistsError: If `lock` is a symbolic link.
        PermissionError: If the folder of `lock` cannot be written to.
    """
    if is_shared and get_rank() > 0:
        yield
        return
    lock = lock.parent.resolve() / lock.name  # so that a link to a new folder can be made
    is_new = not lock.parent.exists()
    lock.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(lock.parent, os.W_OK):  # `FileLock` would report another process
        raise PermissionError(f"Expected a folder that can be written to, got {lock.parent}.")
    if lock.is_symlink():  # older versions of filelock would empty the file to which it points
        raise FileExistsError(f"Expected no link as lock, got {lock}. Delete it.")
    file_lock = FileLock(lock, timeout=0)
    try:
        file_lock.acquire()
    except Timeout as error:
        raise BlockingIOError(
            f"Another process is writing {output}: wait for it, or choose another output."
        ) from error
    try:
        yield
    finally:
        with suppress(PermissionError):  # of Windows, where the release deletes the file
            lock.unlink(missing_ok=True)  # after the release, it may belong to another process
        file_lock.release()
        if is_new:
            with suppress(OSError):  # the folder contains files
                lock.parent.rmdir()


def locks_output(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: lock the folder of its option `output` while the command runs."""

    @wraps(command)
    def run(*args: Any, output: Path, **kwargs: Any) -> None:
        with lock_output(output, output / LOCK, is_shared=True):
            command(*args, output=output, **kwargs)

    return run

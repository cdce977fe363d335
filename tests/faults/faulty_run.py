"""Run a command in a process of its own, and let it fail at one change of the file system."""

import errno
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import safetensors.torch
import torch
from tqdm.std import TqdmDefaultWriteLock

TqdmDefaultWriteLock.mp_lock = None  # forks share it: who is killed with it would stop all others

Fault = Literal["kill", "full", "read-only", "interrupt", "terminate"]
CHANGES = {
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
}
GROWING = {"open", "native write", "os.mkdir", "os.link"}  # what a full disk refuses
WRITING = os.O_WRONLY | os.O_RDWR
ERRORS = {"full": errno.ENOSPC, "read-only": errno.EROFS}
SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
# Files that are written without a call of Python's: the functions that do.
NATIVE_WRITERS = [(torch, "save"), (safetensors.torch, "save_file")]


class Result(NamedTuple):
    """How a run ended: its exit code, and how many changes it made or tried."""

    exit_code: int | None
    num_changes: int


def write_notes(output: Path) -> list[Path]:
    """Write a user's files into an output, in folders that are named almost as checkpoints are."""
    names = ("checkpoint-1-copy", "checkpoint-2.bak", "checkpoint-99999", "checkpoint-old-5")
    notes = [output / name / "notes.txt" for name in names]
    for note in notes:
        note.parent.mkdir(parents=True)
        note.touch()
    return notes


class _Faults:
    """Counts the changes in a folder; from the one of a number on, they fail."""

    def __init__(self, folder: Path, fault: Fault | None, at: int, count: Any) -> None:
        self.folder, self.fault, self.at, self.count = str(folder.resolve()), fault, at, count

    def watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take what Python tells an audit hook."""
        if event not in CHANGES and not (event == "open" and self._is_writing(arguments)):
            return
        paths = [os.fspath(x) for x in arguments[:2] if isinstance(x, str | bytes | os.PathLike)]
        names = [os.path.abspath(os.fsdecode(path)) for path in paths]  # noqa: PTH100 (no links)
        # What shutil.rmtree deletes has no folder in its name.
        if any(n.startswith(self.folder) for n in names) or event in ("os.remove", "os.rmdir"):
            self.meet(event)

    @staticmethod
    def _is_writing(arguments: tuple[Any, ...]) -> bool:
        _, mode, flags = arguments
        return bool(flags & WRITING) if mode is None else bool(set("wxa+") & set(mode))

    def meet(self, event: str) -> bool:
        """Count a change, and let it fail if its turn has come. A native write is to be cut."""
        self.count.value += 1
        is_due = self.count.value == self.at
        if self.fault in ERRORS and self.count.value >= self.at:
            if self.fault == "read-only" or event in GROWING:
                number = ERRORS[self.fault]
                raise OSError(number, os.strerror(number))
        elif is_due and event == "native write":
            return True
        elif is_due and self.fault is not None:
            self.strike()
        return False

    def strike(self) -> None:
        """Send this process the signal."""
        os.kill(os.getpid(), SIGNALS[str(self.fault)])

    def wrap(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """Let a native writer leave half a file when its turn has come."""

        def call(content: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(file, str | os.PathLike):
                return write(content, file, *args, **kwargs)
            is_cut = self.meet("native write")
            result = write(content, file, *args, **kwargs)
            if is_cut:
                descriptor = os.open(file, os.O_RDWR)
                os.ftruncate(descriptor, Path(file).stat().st_size // 2)
                self.strike()
            return result

        return call


def run(
    command: Callable[[], None],
    folder: Path,
    fault: Fault | None = None,
    at: int = sys.maxsize,
    *,
    seconds: float = 120.0,
) -> Result:
    """Run a command in a fork.

    Args:
        command: What to run; it may end with `SystemExit`.
        folder: Only changes in this folder count.
        fault: What happens: a signal at one change, or all changes fail from there on.
        at: The number of that change, from 1.
        seconds: When the process is killed, wherever it is.

    Returns:
        Exit code and changes.
    """
    context = multiprocessing.get_context("fork")
    count = context.Value("q", 0, lock=False)

    def target() -> None:
        torch.set_num_threads(1)  # others did not survive the fork
        faults = _Faults(folder, fault, at, count)
        warnings.simplefilter("ignore")
        sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (till the process ends)
        for owner, name in NATIVE_WRITERS:
            write, wrapped = getattr(owner, name), faults.wrap(getattr(owner, name))
            for module in list(sys.modules.values()):  # those that imported it by its name too
                for key, value in list(vars(module).items()) if module is not None else []:
                    if value is write:
                        setattr(module, key, wrapped)
        sys.addaudithook(faults.watch)
        command()

    process = context.Process(target=target)
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return Result(process.exitcode, count.value)


def check_finishes(
    make: Callable[[Path], Callable[[], None]], folder: Path, fault: Fault, max_faults: int
) -> None:
    """Train with a fault at some of the changes, and then again by the same command.

    Args:
        make: Makes the command that writes a model into a folder.
        folder: Where the models are written, one for each fault.
        fault: What happens at a change.
        max_faults: How many of the changes are tried.
    """
    whole = folder / "whole"
    code, num_changes = run(make(whole), whole)
    assert code == 0
    expected = safetensors.torch.load_file(whole / "model.safetensors")
    for at in range(1, num_changes + 1, -(-num_changes // max_faults)):
        output = folder / f"at-{at}"
        notes = write_notes(output)
        first, second = run(make(output), output, fault, at), run(make(output), output)
        assert second.exit_code == 0, (at, first, second)
        found = safetensors.torch.load_file(output / "model.safetensors")
        assert all(torch.equal(found[key], x) for key, x in expected.items()), (at, first)
        assert all(note.exists() for note in notes), at

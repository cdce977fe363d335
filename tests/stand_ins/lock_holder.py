"""A process that holds the locks of outputs until it is told to let them go."""

from multiprocessing.synchronize import Event
from pathlib import Path

from hf_elmo.files.output_lock import lock_output


def hold(folder: Path, file: Path, are_held: Event, are_free: Event) -> None:
    lock = file.with_name(f".{file.name}.lock")
    with lock_output(folder, folder / ".lock"), lock_output(file, lock):
        are_held.set()
        are_free.wait(60)

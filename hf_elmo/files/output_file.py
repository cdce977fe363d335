"""Output files of commands: written completely or not at all, and overwritten only on request."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
OWN_FILE = re.compile(r"(/dev/stdout|/dev/stderr)|(?:/dev|/proc/self)/fd/(\d+)")
OPEN_FILE = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/(self|\d+)/fd/\d+")


def check_output_file(
    output: Path, sources: Iterable[str | Path] = (), *, overwrite: bool = False
) -> None:
    """Check that a file can be written, and that no file is overwritten by mistake.

    A device such as `/dev/stdout` is not checked.

    Args:
        output: The file to write.
        sources: Input files, which are never overwritten.
        overwrite: Whether another existing file may be overwritten.

    Raises:
        FileExistsError: If the output exists and must not be overwritten.
        ValueError: If the name is that of a compressed file, or `-`.
        OSError: If the output is a folder, or its folder is missing or cannot be written to.
    """
    if output.is_dir():
        raise IsADirectoryError(f"Expected a file to write, got the folder {output}.")
    if str(output) == "-":
        raise ValueError("Expected the name of a file, got -. Standard output is /dev/stdout.")
    if is_device(output):
        return
    if output.suffix.lower() in PACKED_SUFFIXES:
        raise ValueError(f"Expected a name without {output.suffix}: {output} would be plain text.")
    if not output.parent.is_dir():
        raise FileNotFoundError(
            f"Expected a folder {output.parent} for {output.name}, found none. Create it."
        )
    if not os.access(output.parent, os.W_OK):
        raise PermissionError(f"Expected a folder that can be written to, got {output.parent}.")
    if not output.exists():
        return
    if any(Path(source).exists() and output.samefile(source) for source in sources):
        raise FileExistsError(f"Expected an output other than the input, got {output} twice.")
    if not overwrite:
        raise FileExistsError(
            f"Expected a new file, got {output}, which exists. Choose another name, or give "
            "--overwrite."
        )


def find_place(output: Path) -> Path:
    """Return the file or folder to write: that to which a symbolic link points.

    Raises:
        FileExistsError: If it is a device or an open file, which cannot be replaced.
    """
    if is_device(output):
        raise FileExistsError(f"Expected the name of a file or folder, got the device {output}.")
    return output.resolve() if output.is_symlink() else output


@contextmanager
def replace(path: Path) -> Iterator[Path]:
    """Yield a temporary path; move its file to `path`, or delete it after an error."""
    # A process of a killed run may still be writing; the random name keeps the files separate.
    temporary = path.with_name(f"{path.name}.{uuid4().hex}.temporary")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_file(output: Path, parts: Iterable[str], *, errors: str = "strict") -> None:
    """Write a text, or its parts, to a file (completely or not at all) or directly to a device.

    Args:
        output: The file or device.
        parts: The text.
        errors: Python's error handler for characters that are not Unicode.
    """
    appends = is_device(output)
    # A symbolic link is kept: the file to which it points is replaced.
    target = nullcontext(output) if appends else replace(output.resolve())
    # The shell may have opened a file behind a device to append to it.
    mode, opener = ("a", _open_device) if appends else ("w", None)
    options: dict[str, Any] = {"encoding": "utf-8", "errors": errors, "newline": "\n"}
    with target as path, open(path, mode, opener=opener, **options) as file:
        file.writelines([parts] if isinstance(parts, str) else parts)


def _open_device(name: str, flags: int) -> int:
    """Open a device; a file that this process has open is not opened again.

    The position in a redirected file is then the same for all that write to it, such as later
    commands of a shell. Otherwise, they would write over each other.
    """
    found = OWN_FILE.fullmatch(str(Path(name).absolute()))
    if found is None:
        return os.open(name, flags)
    return os.dup(STREAMS.get(found[1]) or int(found[2]))


def is_device(output: Path) -> bool:
    """Return whether a path is a device or an open file, such as a redirected `/dev/stdout`."""
    is_open_file = OPEN_FILE.fullmatch(str(output.absolute())) is not None
    return is_open_file or (output.exists() and not output.is_file() and not output.is_dir())

"""Text files with a sentence a line, for tests."""

from pathlib import Path


def write(folder: Path, **files: list[str]) -> list[str]:
    """Write each file's lines to NAME.txt; return the paths."""
    for name, lines in files.items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return [str(folder / f"{name}.txt") for name in files]

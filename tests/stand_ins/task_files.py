"""Files of the tasks' formats, written for a test."""

from pathlib import Path
from typing import Any


def write(folder: Path, text: str, name: str = "data.txt") -> Path:
    """Write a file, and return its path."""
    path = folder / name
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return path


def strip(examples: list[Any]) -> list[Any]:
    """Return examples without the numbers of their lines."""
    return [example._replace(line=0) for example in examples]


def make_document(cells: list[str], breaks: int = 2) -> str:
    """Return a document of one column of mentions, one word per cell, in two sentences."""
    rows = [f"x\t0\t{row}\tw{row}\t_\t{cell}\n" for row, cell in enumerate(cells)]
    return "#begin document (x); part 0\n" + "".join(rows[:breaks]) + "\n" + "".join(rows[breaks:])

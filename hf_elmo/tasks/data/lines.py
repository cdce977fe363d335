"""Read lines of task files; errors give the line, and the expected and actual text."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from hf_elmo.text.text_files import decode_lines, decompress

CONLL_WORD = 3  # column of the word in CoNLL-2012, from 0
Example = TypeVar("Example")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number (from 1) of each line of a text file, and the line without its end.

    Raises:
        ValueError: If the file is not UTF-8, or a compressed file is damaged.
    """
    with path.open("rb") as file:
        lines = decode_lines(decompress(file, path.name), str(path))
        for number, line in enumerate(lines, start=1):
            yield number, line.rstrip("\r\n")


def read_records(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers."""
    return ((number, line) for number, line in read_lines(path) if line.strip())


def group_rows(path: Path, skipped: str) -> Iterator[list[tuple[int, str]]]:
    """Yield groups of lines, separated by blank lines and by lines that start with `skipped`."""

    def is_row(row: tuple[int, str]) -> bool:
        return bool(row[1].strip(" \t")) and not row[1].startswith(skipped)

    return (list(rows) for is_kept, rows in groupby(read_lines(path), is_row) if is_kept)


def split_blanks(line: str) -> list[str]:
    """Split a line at spaces and tabs only: other white space may be part of a word."""
    return [part for part in re.split(r"[ \t]+", line) if part]


def parse_json(path: Path, number: int, line: str, keys: Sequence[str]) -> dict[str, Any]:
    """Read a JSON object from a line; the object must have all keys."""
    try:
        data = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        refuse(path, number, "a line of JSON", line)
    if not isinstance(data, dict) or not set(keys) <= data.keys():
        refuse(path, number, f"an object with {', '.join(keys)}", line)
    return data


def refuse(path: Path, number: int, expected: str, found: object) -> NoReturn:
    """Raise an error about a line of a file."""
    shown = found if isinstance(found, str) else repr(found)
    raise ValueError(f"{path}, line {number}: expected {expected}, found {shown[:80]!r}.")


def need_some(examples: list[Example], path: Path, what: str) -> list[Example]:
    """Return the examples of a file; raise a `ValueError` if there are none."""
    if not examples:
        raise ValueError(f"{path}: expected {what}, found none.")
    return examples

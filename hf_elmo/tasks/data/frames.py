"""Read PropBank frames from JSON lines and from columns of CoNLL-2012."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .labels import Span
from .lines import CONLL_WORD, group_rows, need_some, parse_json, read_records, refuse, split_blanks

PREDICATE = "V"
FEWEST_VERBS = 10  # that can show that a file counts positions in another way
CONLL_ROLES = slice(11, -1)  # one column per predicate; coreference is the last column
CONLL_FEWEST = 12


class Frame(NamedTuple):
    """A predicate in its sentence, and its arguments.

    Attributes:
        predicate: Position of the predicate.
        roles: The arguments, without the predicate's own span (`V`).
        line: As for `TaggedSentence`.
    """

    words: list[str]
    predicate: int
    roles: list[Span]
    line: int = 0


def read_frames(path: Path) -> list[Frame]:
    """Read PropBank frames, one example each, including frames without arguments.

    Args:
        path: JSON lines (`.jsonl`) with `tokens` and `frames`, or columns of CoNLL-2012. A frame in
            JSON has `v`, the position of the predicate, and `args`, each `[label, first, last]`.

    Raises:
        ValueError: If a line is not in the expected format, or if most of the values `v` are
            outside of their frame's `V` (in 10 frames or more).
    """
    frames = _read_json_frames(path) if ".jsonl" in path.suffixes else _read_column_frames(path)
    return need_some(list(frames), path, "predicates")


def _read_json_frames(path: Path) -> Iterator[Frame]:
    agree = Counter[bool]()  # whether v is in V; in published data, a few are not
    for number, line in read_records(path):
        data = parse_json(path, number, line, ("tokens", "frames"))
        words, found = data["tokens"], data["frames"]
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            refuse(path, number, "tokens as a list of words", line)
        if not isinstance(found, list):
            refuse(path, number, "frames as a list", line)
        for frame in found:
            try:
                place = frame["v"]
                spans = [Span(name, i, j) for name, i, j in frame["args"]]
            except (KeyError, TypeError, ValueError):
                refuse(path, number, "frames with v and args [label, first, last]", frame)
            if not all(span.label and isinstance(span.label, str) for span in spans):
                refuse(path, number, "labels of roles as texts that are not empty", frame)
            places = [(place, place), *((span.start, span.end) for span in spans)]
            if any(type(x) is not int for pair in places for x in pair):  # bool is an int too
                refuse(path, number, "frames with v and args of integers", frame)
            if any(not 0 <= start <= end < len(words) for start, end in places):
                refuse(path, number, f"spans inside {len(words)} tokens", frame)
            roles = [span for span in spans if span.label != PREDICATE]
            verbs = [span for span in spans if span.label == PREDICATE]
            agree.update([any(verb.start <= place <= verb.end for verb in verbs)] * bool(verbs))
            taken = [word for role in roles for word in range(role.start, role.end + 1)]
            if len(taken) > len(set(taken)):
                refuse(path, number, "roles that do not overlap", frame)
            yield Frame(words, place, roles, number)
    if agree[False] > agree[True] and agree.total() >= FEWEST_VERBS:
        raise ValueError(
            f"{path}: expected v in the span V of its frame, found {agree[False]} of "
            f"{agree.total()} outside of it. Positions are counted from 0."
        )


def _read_column_frames(path: Path) -> Iterator[Frame]:
    for rows in group_rows(path, "#"):
        table: list[list[str]] = []
        for number, line in rows:
            columns = split_blanks(line)
            if len(columns) < CONLL_FEWEST or (table and len(columns) != len(table[0])):
                width = len(table[0]) if table else f"at least {CONLL_FEWEST}"
                refuse(path, number, f"{width} columns", line)
            table.append(columns)
        if any("*" in columns[-1] for columns in table):
            refuse(path, rows[0][0], "coreference, or -, in the last column", table[0])
        words = [columns[CONLL_WORD] for columns in table]
        brackets = [columns[CONLL_ROLES] for columns in table]
        for frame in range(len(brackets[0])):
            cells = [row[frame] for row in brackets]
            spans = _read_brackets(cells)
            verbs = [span for span in spans or [] if span.label == PREDICATE]
            if spans is None or len(verbs) != 1:
                refuse(path, rows[0][0], "roles such as (ARG0*, * and *), one of them V", cells)
            roles = [span for span in spans if span.label != PREDICATE]
            yield Frame(words, verbs[0].start, roles, rows[0][0])


def _read_brackets(cells: Sequence[str]) -> list[Span] | None:
    """Read spans from cells such as `(ARG0*`, `*`, `*)`; return None if a cell is invalid."""
    spans: list[Span] = []
    is_open = False
    for place, cell in enumerate(cells):
        match = re.fullmatch(r"(?:\(([^()*]+))?\*(\))?", cell)
        if not match or (match[1] and is_open) or (match[2] and not (match[1] or is_open)):
            return None
        if match[1]:
            spans.append(Span(match[1], place, place))
            is_open = True
        if is_open:
            spans[-1] = spans[-1]._replace(end=place)
        is_open = is_open and not match[2]
    return None if is_open else spans

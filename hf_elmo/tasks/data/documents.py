"""Read coreference from the columns of OntoNotes (CoNLL-2012)."""

import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from .lines import CONLL_WORD, need_some, read_lines, refuse, split_blanks


class Document(NamedTuple):
    """A document and its coreferent mentions.

    Attributes:
        clusters: For each entity, the first and last word of each mention, counted from the start
            of the document. Entities with one mention are left out.
    """

    name: str
    sentences: list[list[str]]
    clusters: list[list[tuple[int, int]]]


def read_documents(path: Path) -> list[Document]:
    """Read OntoNotes' columns: word in column 3 (from 0), coreference in the last, as `(5|(3)`.

    Args:
        path: A line `#begin document ...` precedes each document; sentences end at blank lines.

    Returns:
        The documents. Clusters of one mention are left out, as a model of pairs cannot find them.

    Raises:
        ValueError: If a line has too few columns, or a bracket is not opened or not closed.
    """
    documents: list[Document] = []
    name, sentences = "", list[list[str]]()
    mentions = defaultdict[str, list[tuple[int, int]]](list)
    stacks = defaultdict[str, list[int]](list)  # first words of open mentions
    place = number = 0

    def finish() -> None:
        if unfinished := [*filter(stacks.get, stacks)]:
            refuse(path, number, "every mention to end in its document", unfinished)
        clusters = [sorted(spans) for spans in map(set, mentions.values()) if len(spans) > 1]
        if any(sentences):
            documents.append(Document(name, [*filter(None, sentences)], sorted(clusters)))
        sentences.clear()
        mentions.clear()

    for number, line in read_lines(path):
        if line.startswith("#begin document"):
            finish()
            name, sentences = line.removeprefix("#begin document").strip(), [[]]
            place = 0
        elif line.startswith("#end document"):
            finish()
        elif not line.strip():
            if sentences:  # a document is open
                sentences.append([])
        else:
            columns = split_blanks(line)
            if len(columns) <= CONLL_WORD + 1 or not sentences:
                expected = "#begin document, then columns with a word in the fourth"
                refuse(path, number, expected, line)
            if not _read_mentions(columns[-1], place, stacks, mentions):
                refuse(path, number, "mentions such as (5, 5) or (5), or - or _", columns[-1])
            sentences[-1].append(columns[CONLL_WORD])
            place += 1
    finish()
    return need_some(documents, path, "documents")


def _read_mentions(
    cell: str, place: int, stacks: dict[str, list[int]], mentions: dict[str, list[tuple[int, int]]]
) -> bool:
    """Open and close the mentions in a word's cell; return whether the cell is valid."""
    if cell in ("-", "_"):
        return True
    for part in cell.split("|"):
        match = re.fullmatch(r"(\()?(\w+)(\))?", part)
        if not match or not (match[1] or (match[3] and stacks[match[2]])):
            return False
        if match[1]:
            stacks[match[2]].append(place)
        if match[3]:
            mentions[match[2]].append((stacks[match[2]].pop(), place))
    return True

"""Readers of the tasks' file formats; errors give the line, and the expected and actual text."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from hf_elmo.text.text_files import decode_lines, decompress

from .labels import OUTSIDE, Span, find_spans

DOCUMENT_START = "-DOCSTART-"  # of CoNLL-2003
TAG_PATTERN = re.compile(r"O|[BIULES]-\S(.*\S)?")
ESCAPED = re.compile(r"\\([/*])")  # in trees of the Penn Treebank
SAME_TAGS = str.maketrans("SE", "UL")  # BIOES: S (single) = U (unit), E (end) = L (last)
Example = TypeVar("Example")


class TaggedSentence(NamedTuple):
    """A sentence with spans that do not overlap.

    Attributes:
        line: Number of the sentence's first line in its file, from 1; 0 = no file.
    """

    words: list[str]
    spans: list[Span]
    line: int = 0


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number (from 1) of each line of a text file, and the line without its end.

    Raises:
        ValueError: If the file is not UTF-8, or a compressed file is damaged.
    """
    with path.open("rb") as file:
        lines = decode_lines(decompress(file, path.name), str(path))
        for number, line in enumerate(lines, start=1):
            yield number, line.rstrip("\r\n")


def _read_records(path: Path) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in read_lines(path) if line.strip())


def split_blanks(line: str) -> list[str]:
    """Split a line at spaces and tabs only: other white space may be part of a word."""
    return [part for part in re.split(r"[ \t]+", line) if part]


def refuse(path: Path, number: int, expected: str, found: object) -> NoReturn:
    """Raise an error about a line of a file."""
    shown = found if isinstance(found, str) else repr(found)
    raise ValueError(f"{path}, line {number}: expected {expected}, found {shown[:80]!r}.")


def read_columns(path: Path, *, reads_tags: bool = True) -> list[TaggedSentence]:
    """Read CoNLL columns: a word per line, its tag last; blank lines between sentences.

    Args:
        path: Columns separated by tabs or spaces; tags are BIO, IOB, BIOUL or BIOES. `-DOCSTART-`
            lines are skipped. So are comments: lines before a sentence that begin with `#` and have
            another number of columns than the file.
        reads_tags: Whether tags are required; if not, lines may consist of a word alone.

    Raises:
        ValueError: If lines differ in their number of columns, a tag is missing or invalid, the
            first column holds word numbers, or there is no sentence.
    """
    sentences = []
    groups = [*_group_rows(path, DOCUMENT_START)]
    lines = [line for rows in groups for _, line in rows]
    first = next((line for line in lines if not line.startswith("#")), "".join(lines[:1]))
    width = len(_split_row(first))
    for rows in groups:
        words, tags = list[str](), list[str]()
        for number, line in rows:
            columns = _split_row(line)
            if line.startswith("#") and len(columns) != width and not words:
                continue
            if len(columns) != width:
                refuse(path, number, f"{width} columns, as in other lines", line)
            if width < 1 + reads_tags or not columns[0].strip():
                refuse(path, number, "a word and its tag" if reads_tags else "a word", line)
            if width == 1:
                columns.append(OUTSIDE)
            if not TAG_PATTERN.fullmatch(columns[-1]):
                expected = "a tag such as O, B-PER or I-PER"
                refuse(path, number, expected + ", or a word alone" * (not reads_tags), columns[-1])
            words.append(columns[0])
            tags.append(columns[-1][0].translate(SAME_TAGS) + columns[-1][1:])
        if words:
            start = rows[-len(words)][0]
            sentences.append(TaggedSentence(words, find_spans(tags), start))
    _refuse_numbers(path, sentences)
    return _need_some(sentences, path, "sentences")


def _split_row(line: str) -> list[str]:
    if "\t" not in line:
        return split_blanks(line)
    word, *others = line.split("\t")
    return [word.strip(" "), *others]


def _refuse_numbers(path: Path, sentences: list[TaggedSentence]) -> None:
    """Refuse columns that begin with word numbers, as in CoNLL-U."""
    for first in (0, 1):
        numbers = [[str(first + row) for row in range(len(one.words))] for one in sentences]
        if any(len(row) > 1 for row in numbers) and [one.words for one in sentences] == numbers:
            raise ValueError(
                f"{path}: expected words in the first column, found their numbers. Remove that "
                "column."
            )


def _group_rows(path: Path, skipped: str) -> Iterator[list[tuple[int, str]]]:
    """Yield groups of lines, separated by blank lines and by lines that start with `skipped`."""

    def is_row(row: tuple[int, str]) -> bool:
        return bool(row[1].strip()) and not row[1].startswith(skipped)

    return (list(rows) for is_kept, rows in groupby(read_lines(path), is_row) if is_kept)


def _need_some(examples: list[Example], path: Path, what: str) -> list[Example]:
    if not examples:
        raise ValueError(f"{path}: expected {what}, found none.")
    return examples


class LabelledSentence(NamedTuple):
    """A sentence, or a phrase of one, with one label; `line` as for `TaggedSentence`."""

    words: list[str]
    label: str
    line: int = 0


ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
TREE_NODE = re.compile(r"\(\s*[^\s()\0]+\s+(?:[^\s()\0]+|\0(?:\s*\0)+)\s*\)")  # \0 = a node
TREE_START = re.compile(r"\s*\(\d+ \(")  # no plain sentence begins like this


def read_trees(
    path: Path, *, min_phrase: int | None = None, reads_words: bool = False
) -> list[LabelledSentence]:
    """Read labelled sentences: Stanford's trees (Socher et al. 2013), or `label<TAB>text`.

    Args:
        path: One sentence per line: a tree with a label at every node, such as
            `(3 (2 It) (3 (3 works) (2 .)))`; or a label, a tab, and words separated by spaces.
        min_phrase: Minimum number of words of a phrase; phrases of a tree are added after their
            sentence. None = sentences only.
        reads_words: Whether a line without a tab is read as a sentence without a label, unless it
            begins like a tree.

    Raises:
        ValueError: If a line has none of these forms.
    """
    examples: list[LabelledSentence] = []
    for number, line in _read_records(path):
        nodes = None if reads_words and _is_parenthesis(line) else _parse_tree(line)
        if nodes is None and not TREE_START.match(line):
            if "\t" in line:
                label, text = _split_columns(path, number, line, ("label", "text"))
                nodes = [LabelledSentence(split_blanks(text), label)]
            elif reads_words:
                nodes = [LabelledSentence(split_blanks(line), "")]
        if nodes is None:
            expected = "a tree such as (3 (2 It) (3 works)), or a label, a tab and a text"
            refuse(path, number, expected, line)
        root, *phrases = nodes
        wanted = (p for p in phrases if min_phrase is not None and len(p.words) >= min_phrase)
        examples += [node._replace(line=number) for node in (root, *wanted)]
    return _need_some(examples, path, "trees")


HEADINGS = {
    *("label", "gold_label", "class", "sentiment", "text", "sentence", "premise", "hypothesis"),
    *("sentence1", "sentence2", "text1", "text2"),
}


def _split_columns(path: Path, number: int, line: str, names: Sequence[str]) -> list[str]:
    """Split a line at tabs into a label without blanks and texts that are not empty."""
    columns = [column.strip(" ") for column in line.split("\t")]
    expected = f"{', '.join(names)} between tabs, in this order"
    if len(columns) != len(names) or not all(columns):
        refuse(path, number, expected, line)
    if all(column.lower() in HEADINGS for column in columns):
        refuse(path, number, f"{expected}, and no heading", line)
    if " " in columns[0]:
        refuse(path, number, f"{expected}, and a label without blanks", columns[0])
    return columns


def _parse_tree(line: str) -> list[LabelledSentence] | None:
    """List a tree's nodes, the root first; None if the line is not a tree."""
    nodes: list[LabelledSentence] = []
    open_nodes: list[LabelledSentence] = []
    for label, token in re.findall(r"\(\s*([^\s()]+)|([()]|[^\s()]+)", line):
        if label and (open_nodes or not nodes):
            nodes.append(LabelledSentence([], label))
            open_nodes.append(nodes[-1])
        elif token in ("", "(") or not open_nodes or (token == ")" and not open_nodes[-1].words):
            return None
        elif token == ")":
            open_nodes.pop()
        else:
            for node in open_nodes:
                node.words.append(_unescape(token))
    return nodes if nodes and not open_nodes else None


def _unescape(leaf: str) -> str:
    return ESCAPES.get(leaf, ESCAPED.sub(r"\1", leaf))


def _is_parenthesis(line: str) -> bool:
    """Return whether a line in brackets is a sentence, such as `( It works )`, and no tree.

    Each node of a tree holds one word, or several nodes. The label of a single node is a number.
    """
    if TREE_START.match(line):
        return False
    is_labelled = line.count("(") > 1 or re.match(r"\s*\(\s*[+-]?\d+\s", line)
    count = 1
    while count:
        line, count = TREE_NODE.subn("\0", line)
    return not (is_labelled and line.strip() == "\0")


class Pair(NamedTuple):
    """Words of two sentences, and a label such as `entailment`; `line` as for `TaggedSentence`."""

    premise: list[str]
    hypothesis: list[str]
    label: str
    line: int = 0


def read_pairs(path: Path, *, keeps_all: bool = False) -> list[Pair]:
    """Read SNLI's JSON lines, or `label<TAB>premise<TAB>hypothesis` with spaces between words.

    Args:
        path: A line is JSON if the file is `.jsonl` or the line begins with `{`. JSON lines need
            `gold_label` and the binary parses; the words are read from the parses.
        keeps_all: Whether pairs without a gold label (`-`) are kept.

    Raises:
        ValueError: If a line is not in the expected format.
    """
    is_json = ".jsonl" in path.suffixes
    pairs = []
    for number, line in _read_records(path):
        if is_json or line.startswith("{"):
            keys = ("gold_label", "sentence1_binary_parse", "sentence2_binary_parse")
            data = _parse_json(path, number, line, keys)
            label = "-" if data[keys[0]] in (None, "") else str(data[keys[0]])
            parses = [data[key] or "" for key in keys[1:]]
            if not all(isinstance(parse, str) for parse in parses):
                refuse(path, number, "parses as texts", line)
            leaves = [re.findall(r"[^\s()]+", parse) for parse in parses]
            words = [[_unescape(leaf) for leaf in sentence] for sentence in leaves]
        else:
            label, *texts = _split_columns(path, number, line, ("label", "premise", "hypothesis"))
            words = [split_blanks(text) for text in texts]
        if not all(words):
            refuse(path, number, "two sentences with words", line)
        if keeps_all or label != "-":
            pairs.append(Pair(words[0], words[1], label, number))
    return _need_some(pairs, path, "pairs")


def _parse_json(path: Path, number: int, line: str, keys: Sequence[str]) -> dict[str, Any]:
    """Read a JSON object from a line; the object must have all keys."""
    try:
        data = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        refuse(path, number, "a line of JSON", line)
    if not isinstance(data, dict) or not set(keys) <= data.keys():
        refuse(path, number, f"an object with {', '.join(keys)}", line)
    return data


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


PREDICATE = "V"
FEWEST_VERBS = 10  # that can show that a file counts positions in another way


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
    return _need_some(list(frames), path, "predicates")


def _read_json_frames(path: Path) -> Iterator[Frame]:
    agree = Counter[bool]()  # whether v is in V; in published data, a few are not
    for number, line in _read_records(path):
        data = _parse_json(path, number, line, ("tokens", "frames"))
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


CONLL_WORD = 3  # column of CoNLL-2012, from 0
CONLL_ROLES = slice(11, -1)  # one column per predicate; coreference is the last column
CONLL_FEWEST = 12


def _read_column_frames(path: Path) -> Iterator[Frame]:
    for rows in _group_rows(path, "#"):
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

    for number, line in read_lines(path):
        if line.startswith("#begin document"):
            finish()
            name, sentences = line.removeprefix("#begin document").strip(), [[]]
            mentions.clear()
            place = 0
        elif line.startswith("#end document"):
            continue
        elif not line.strip():
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
    return _need_some(documents, path, "documents")


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

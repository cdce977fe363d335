"""Read tagged sentences, labelled sentences and pairs of sentences."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .labels import OUTSIDE, Span, find_spans
from .lines import group_rows, need_some, parse_json, read_records, refuse, split_blanks

DOCUMENT_START = "-DOCSTART-"  # of CoNLL-2003
TAG_PATTERN = re.compile(r"O|[BIULES]-\S(.*\S)?")
ESCAPED = re.compile(r"\\([/*])")  # in trees of the Penn Treebank
SAME_TAGS = str.maketrans("SE", "UL")  # BIOES: S (single) = U (unit), E (end) = L (last)


class TaggedSentence(NamedTuple):
    """A sentence with spans that do not overlap.

    Attributes:
        line: Number of the sentence's first line in its file, from 1; 0 = no file.
    """

    words: list[str]
    spans: list[Span]
    line: int = 0


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
    groups = [*group_rows(path, DOCUMENT_START)]
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
    return need_some(sentences, path, "sentences")


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
    for number, line in read_records(path):
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
    return need_some(examples, path, "trees")


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
    for number, line in read_records(path):
        if is_json or line.startswith("{"):
            keys = ("gold_label", "sentence1_binary_parse", "sentence2_binary_parse")
            data = parse_json(path, number, line, keys)
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
    return need_some(pairs, path, "pairs")

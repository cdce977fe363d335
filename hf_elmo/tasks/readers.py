"""Read the examples of all tasks.

A format has one error: `FILE, line N: expected FORMAT, found TEXT`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from hf_elmo.text.text_files import decode_lines, decompress
from hf_elmo.word_splitting import split_text

from .labels import OUTSIDE, PREDICATE, Span, find_spans

Use: TypeAlias = Literal["train", "score", "predict"]  # purpose of examples
Example = TypeVar("Example")


class TaggedSentence(NamedTuple):
    """A sentence with spans that do not overlap.

    Attributes:
        line: Number of the sentence's first line in its file, from 1; 0 = no file.
    """

    words: list[str]
    spans: list[Span]
    line: int = 0


class LabelledSentence(NamedTuple):
    """A sentence, or a phrase of one, with one label; `line` as for `TaggedSentence`."""

    words: list[str]
    label: str
    line: int = 0


class Pair(NamedTuple):
    """Words of two sentences, and a label such as `entailment`; `line` as for `TaggedSentence`."""

    premise: list[str]
    hypothesis: list[str]
    label: str
    line: int = 0


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


class Question(NamedTuple):
    """A question about a passage.

    Attributes:
        name: Id of the question.
        words: Words of the passage.
        offsets: Start and end of each of these words in characters; the end is exclusive.
        question: Words of the question.
        answers: Texts of the correct answers.
        span: First and last word of the first answer that is not ambiguous, or None.
    """

    name: str
    passage: str
    words: list[str]
    offsets: list[tuple[int, int]]
    question: list[str]
    answers: list[str]
    span: tuple[int, int] | None

    def cut(self, span: tuple[int, int]) -> str:
        """Return the passage's text from the first to the last word of a span."""
        return self.passage[self.offsets[span[0]][0] : self.offsets[span[1]][1]]


class Document(NamedTuple):
    """A document and its coreferent mentions.

    Attributes:
        clusters: For each entity, the first and last word of each mention, counted from the start
            of the document. Entities with one mention are left out.
    """

    name: str
    sentences: list[list[str]]
    clusters: list[list[tuple[int, int]]]


# Lines, and the one error of each format


@contextmanager
def _expect(path: Path, place: int | str, expected: str, text: str) -> Iterator[None]:
    """Turn any failure to parse a text into an error that names its place and its format."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        where = f"line {place}" if isinstance(place, int) else place
        raise ValueError(f"{path}, {where}: expected {expected}, found {text[:80]!r}.") from error


def _need(condition: object) -> None:
    if not condition:
        raise ValueError("not in the format")


def _need_some(examples: list[Example], path: Path, what: str) -> list[Example]:
    if not examples:
        raise ValueError(f"{path}: expected {what}, found none.")
    return examples


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number (from 1) of each line of a text file, and the line without its end.

    The file may be compressed (`.gz`, `.bz2`, `.xz`, `.zst`).
    """
    with path.open("rb") as file:
        lines = decode_lines(decompress(file, path.name), str(path))
        for number, line in enumerate(lines, start=1):
            yield number, line.rstrip("\r\n")


def _read_records(path: Path) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in read_lines(path) if line.strip())


def _group_rows(path: Path, skipped: str) -> Iterator[list[tuple[int, str]]]:
    """Yield groups of lines, separated by blank lines and by lines that start with `skipped`."""

    def is_row(row: tuple[int, str]) -> bool:
        return bool(row[1].strip(" \t")) and not row[1].startswith(skipped)

    return (list(rows) for is_kept, rows in groupby(read_lines(path), is_row) if is_kept)


def _split_blanks(line: str) -> list[str]:
    """Split a line at spaces and tabs only: other white space may be part of a word."""
    return [part for part in re.split(r"[ \t]+", line) if part]


# Named entities: columns

DOCUMENT_START = "-DOCSTART-"  # of CoNLL-2003
TAG = re.compile(r"O|[BIULESM]-\S(.*\S)?")
SAME_TAGS = str.maketrans("SEM", "ULI")  # BIOES and BMES: single, end, middle


def read_columns(path: Path, *, reads_tags: bool = True) -> list[TaggedSentence]:
    """Read CoNLL columns: a word per line, its tag last; blank lines between sentences.

    Args:
        path: Columns separated by tabs or spaces; tags are BIO, IOB, BIOUL, BIOES or BMES.
            `-DOCSTART-` lines are skipped. So are comments: lines before a sentence that begin with
            `#` and have another number of columns than the file.
        reads_tags: Whether tags are required; if not, lines may consist of a word alone.
    """
    groups = [*_group_rows(path, DOCUMENT_START)]
    lines = [line for rows in groups for _, line in rows]
    first = next((line for line in lines if not line.startswith("#")), "".join(lines[:1]))
    width = len(_split_row(first))
    expected = f"{width} columns, a word first and last a tag such as O, B-PER or I-PER"
    expected += "" if reads_tags else ", or a word alone"
    sentences = []
    for rows in groups:
        words, tags = list[str](), list[str]()
        for number, line in rows:
            columns = _split_row(line)
            if line.startswith("#") and len(columns) != width and not words:
                continue
            tag = OUTSIDE if width == 1 and not reads_tags else columns[-1]
            with _expect(path, number, expected, line):
                _need(len(columns) == width >= 1 + reads_tags and columns[0].strip())
                _need(TAG.fullmatch(tag))
            words.append(columns[0])
            tags.append(tag[0].translate(SAME_TAGS) + tag[1:])
        if words:
            sentences.append(TaggedSentence(words, find_spans(tags), rows[-len(words)][0]))
    for start in (0, 1):  # as in CoNLL-U: numbers would be read as words in silence
        numbers = [[str(start + row) for row in range(len(one.words))] for one in sentences]
        if any(len(row) > 1 for row in numbers) and [one.words for one in sentences] == numbers:
            raise ValueError(f"{path}: expected words in the first column, found their numbers.")
    return _need_some(sentences, path, "sentences")


def _split_row(line: str) -> list[str]:
    if "\t" not in line:
        return _split_blanks(line)
    word, *others = line.split("\t")
    return [word.strip(" "), *others]


# Sentiment: trees, or a label and a text

ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
ESCAPED = re.compile(r"\\([/*])")  # in trees of the Penn Treebank
TREE_NODE = re.compile(r"\(\s*[^\s()\0]+\s+(?:[^\s()\0]+|\0(?:\s*\0)+)\s*\)")  # \0 = a node
TREE_START = re.compile(r"\s*\(\d+ \(")  # no plain sentence begins like this
HEADINGS = {"label", "gold_label", "class", "sentiment"}


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
    """
    examples: list[LabelledSentence] = []
    for number, line in _read_records(path):
        nodes = None if reads_words and _is_parenthesis(line) else _parse_tree(line)
        if nodes is None:
            expected = "a tree such as (3 (2 It) (3 works)), or a label, a tab and a text"
            with _expect(path, number, expected, line):
                _need(not TREE_START.match(line))
                if reads_words and "\t" not in line:
                    nodes = [LabelledSentence(_split_blanks(line), "")]
                else:
                    label, words = _split_columns(line, 2)
                    nodes = [LabelledSentence(words, label)]
        root, *phrases = nodes
        wanted = (p for p in phrases if min_phrase is not None and len(p.words) >= min_phrase)
        examples += [node._replace(line=number) for node in (root, *wanted)]
    return _need_some(examples, path, "trees")


def _split_columns(line: str, count: int) -> tuple[Any, ...]:
    """Split a line at tabs into a label without blanks, and the words of texts."""
    columns = [column.strip(" ") for column in line.split("\t")]
    label, *texts = columns
    _need(len(columns) == count and all(columns))
    _need(" " not in label and label.lower() not in HEADINGS)
    return (label, *map(_split_blanks, texts))


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


# Entailment: pairs


def read_pairs(path: Path, *, keeps_all: bool = False) -> list[Pair]:
    """Read SNLI's JSON lines, or `label<TAB>premise<TAB>hypothesis` with spaces between words.

    Args:
        path: A line is JSON if it begins with `{`. JSON lines need `gold_label` and the binary
            parses; the words are read from the parses.
        keeps_all: Whether pairs without a gold label (`-`) are kept.
    """
    pairs = []
    for number, line in _read_records(path):
        expected = "a label, a premise and a hypothesis between tabs, or a line of SNLI's JSON"
        with _expect(path, number, expected, line):
            if line.startswith("{"):
                data = json.loads(line)
                label = str(data["gold_label"] or "-")
                parses = [data["sentence1_binary_parse"], data["sentence2_binary_parse"]]
                leaves = [re.findall(r"[^\s()]+", parse) for parse in parses]
                words = [[_unescape(leaf) for leaf in sentence] for sentence in leaves]
            else:
                label, *words = _split_columns(line, 3)
            _need(all(words))
        if keeps_all or label != "-":
            pairs.append(Pair(words[0], words[1], label, number))
    return _need_some(pairs, path, "pairs")


# Semantic roles: frames

CONLL_WORD = 3  # column of the word in CoNLL-2012, from 0
CONLL_ROLES = slice(11, -1)  # one column per predicate; coreference is the last column
CONLL_FEWEST = 12


def read_frames(path: Path) -> list[Frame]:
    """Read PropBank frames, one example each, including frames without arguments.

    Args:
        path: JSON lines (`.jsonl`) with `tokens` and `frames`, or columns of CoNLL-2012. A frame in
            JSON has `v`, the position of the predicate from 0, and `args`, each
            `[label, first, last]`.
    """
    frames = _read_json_frames(path) if ".jsonl" in path.suffixes else _read_column_frames(path)
    return _need_some(list(frames), path, "predicates")


def _read_json_frames(path: Path) -> Iterator[Frame]:
    expected = 'tokens, and frames with "v" and "args" [label, first, last] that do not overlap'
    for number, line in _read_records(path):
        with _expect(path, number, expected, line):
            data = json.loads(line)
            words = data["tokens"]
            _need(isinstance(words, list) and all(isinstance(word, str) for word in words))
            frames = [_read_frame(frame, words, number) for frame in data["frames"]]
        yield from frames


def _read_frame(frame: Any, words: list[str], number: int) -> Frame:
    spans = [Span(*span) for span in frame["args"]]
    roles = [span for span in spans if span.label != PREDICATE]
    taken = [word for role in roles for word in range(role.start, role.end + 1)]
    places = [(frame["v"], frame["v"]), *((start, end) for _, start, end in spans)]
    _need(all(0 <= start <= end < len(words) for start, end in places))
    _need(len(taken) == len(set(taken)) and all(isinstance(x.label, str) for x in spans))
    _need(all(type(place) is int for pair in places for place in pair))
    return Frame(words, frame["v"], roles, number)


def _read_column_frames(path: Path) -> Iterator[Frame]:
    expected = f"{CONLL_FEWEST} or more columns with roles such as (ARG0*, * and *), one of them V"
    for rows in _group_rows(path, "#"):
        number, line = rows[0]
        with _expect(path, number, expected, line):
            table = [_split_blanks(line) for _, line in rows]
            width = len(table[0])
            _need(width >= CONLL_FEWEST and all(len(columns) == width for columns in table))
            _need(not any("*" in columns[-1] for columns in table))  # coreference is the last
            words = [columns[CONLL_WORD] for columns in table]
            frames = []
            for cells in zip(*(columns[CONLL_ROLES] for columns in table), strict=True):
                spans = _read_brackets(cells)
                (verb,) = (span for span in spans if span.label == PREDICATE)
                roles = [span for span in spans if span.label != PREDICATE]
                frames.append(Frame(words, verb.start, roles, number))
        yield from frames


def _read_brackets(cells: Sequence[str]) -> list[Span]:
    """Read spans from cells such as `(ARG0*`, `*`, `*)`."""
    spans: list[Span] = []
    is_open = False
    for place, cell in enumerate(cells):
        match = re.fullmatch(r"(?:\(([^()*]+))?\*(\))?", cell)
        if not match or (match[1] and is_open) or (match[2] and not (match[1] or is_open)):
            raise ValueError(cell)
        if match[1]:
            spans.append(Span(match[1], place, place))
            is_open = True
        if is_open:
            spans[-1] = spans[-1]._replace(end=place)
        is_open = is_open and not match[2]
    _need(not is_open)
    return spans


# Questions: SQuAD


def read_questions(path: Path, use: Use = "score") -> list[Question]:
    """Read SQuAD 1.1's JSON.

    Args:
        path: `{"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}`.
        use: Purpose of the questions. With `predict`, answers are not read. With `train`, a
            question is skipped if all its answers are marked `"ambiguous": true`.
    """
    text = "".join(line for _, line in read_lines(path))
    with _expect(path, 1, "JSON with SQuAD's data, paragraphs, context and qas", text):
        articles = json.loads(text)["data"]
        paragraphs = [one for article in articles for one in article["paragraphs"]]
        asked = [(p["context"], split_text(p["context"]), q) for p in paragraphs for q in p["qas"]]
    questions = []
    for passage, split, data in asked:
        place = f"question {data.get('id')}" if isinstance(data, dict) else 1
        expected = "an id, words, and answers at their answer_start in a passage with words"
        with _expect(path, place, expected, str(data)):
            questions.append(_read_question(passage, split, data, use))
    kept = [one for one in questions if one.span or use != "train"]
    return _need_some(kept, path, "questions")


def _read_question(passage: str, split: tuple[Any, ...], data: Any, use: Use) -> Question:
    words, offsets = split
    question, _ = split_text(data["question"])
    answers = [] if use == "predict" else data["answers"]
    _need(words and question and (answers or use == "predict"))
    span = None
    for answer in answers:
        start = answer["answer_start"]
        end = start + len(answer["text"])
        _need(start >= 0 and answer["text"].strip() and passage[start:end] == answer["text"])
        inside = [row for row, (a, b) in enumerate(offsets) if a < end and b > start]
        if span is None and inside and not answer.get("ambiguous", False):
            span = inside[0], inside[-1]
    texts = [answer["text"] for answer in answers]
    return Question(str(data["id"]), passage, words, offsets, question, texts, span)


# Coreference: documents


def read_documents(path: Path) -> list[Document]:
    """Read OntoNotes' columns: word in column 3 (from 0), coreference in the last, as `(5|(3)`.

    Args:
        path: A line `#begin document ...` precedes each document; sentences end at blank lines.

    Returns:
        The documents. Clusters of one mention are left out, as a model of pairs cannot find them.
    """
    documents: list[Document] = []
    name, sentences = "", list[list[str]]()
    mentions = defaultdict[str, list[tuple[int, int]]](list)
    stacks = defaultdict[str, list[int]](list)  # first words of open mentions
    place = 0
    expected = (
        "#begin document, then columns with a word in the fourth and mentions such as (5, 5), (5) "
        "or - in the last, each closed in its document"
    )

    def finish() -> None:
        _need(not any(stacks.values()))
        clusters = [sorted(spans) for spans in map(set, mentions.values()) if len(spans) > 1]
        if any(sentences):
            documents.append(Document(name, [*filter(None, sentences)], sorted(clusters)))
        sentences.clear()
        mentions.clear()

    number, line = 0, ""
    for number, line in read_lines(path):
        with _expect(path, number, expected, line):
            if line.startswith(("#begin document", "#end document")):
                finish()
                if line.startswith("#begin"):
                    name, sentences = line.removeprefix("#begin document").strip(), [[]]
                    place = 0
            elif not line.strip():
                sentences += [[]] if sentences else []  # only if a document is open
            else:
                columns = _split_blanks(line)
                _need(len(columns) > CONLL_WORD + 1)
                _read_mentions(columns[-1], place, stacks, mentions)
                sentences[-1].append(columns[CONLL_WORD])
                place += 1
    with _expect(path, number, expected, line):
        finish()
    return _need_some(documents, path, "documents")


def _read_mentions(
    cell: str, place: int, stacks: dict[str, list[int]], mentions: dict[str, list[tuple[int, int]]]
) -> None:
    """Open and close the mentions in a word's cell."""
    for part in [] if cell in ("-", "_") else cell.split("|"):
        match = re.fullmatch(r"(\()?(\w+)(\))?", part)
        _need(match and (match[1] or match[3]))
        opens, entity, closes = match.groups() if match else (None, "", None)
        if opens:
            stacks[entity].append(place)
        if closes:
            mentions[entity].append((stacks[entity].pop(), place))

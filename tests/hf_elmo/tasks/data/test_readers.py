"""Readers of the field's formats: what they read, and how they refuse."""

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from task_files import make_document, write

from hf_elmo.tasks.data.documents import read_documents
from hf_elmo.tasks.data.frames import read_frames
from hf_elmo.tasks.data.sentences import (
    read_columns,
    read_pairs,
    read_trees,
)
from hf_elmo.tasks.squad import read_questions

BAD: list[tuple[Callable[[Path], Any], str, str, str]] = [
    (read_columns, "a\tO\nb\n", "x", "line 2: expected 2 columns, as in other lines, found 'b'"),
    (read_columns, "a\tO\n# x y\nb\tO\n", "x", "line 2: expected 2 columns, as in other lines"),
    (read_columns, "a\nb\n", "x", "line 1: expected a word and its tag, found 'a'"),
    (read_columns, "a\tO-PER\n", "x", "line 1: expected a tag such as .* found 'O-PER'"),
    (read_columns, "a\tO\nb\tPER\n", "x", "line 2: expected a tag such as .* found 'PER'"),
    (read_columns, "a\tO\nb\tB-PER \n", "x", "line 2: expected a tag such as .* found 'B-PER '"),
    (read_columns, "a\tO\nb\tx\tO\n", "x", "line 2: expected 2 columns, as in other lines"),
    (read_columns, "1\ta\tO\n2\tb\tO\n\n1\tc\tO\n", "x", "expected words in the first col"),
    (read_columns, "0 a O\n1 b O\n", "x", "expected words in the first column, found their num"),
    (
        partial(read_columns, reads_tags=False),
        "It works .\nGood .\n",
        "x",
        r"line 1: expected a tag such as .*, or a word alone, found '\.'",
    ),
    (
        partial(read_columns, reads_tags=False),
        "# text = a\n1\ta\ta\tNOUN\t_\t_\t0\troot\t_\t_\n",
        "x",
        "line 2: expected a tag such as .*, or a word alone, found '_'",
    ),
    (read_trees, "label\ttext\n1\ta\n", "x", "line 1: expected label, text .*, and no heading"),
    (read_trees, "it works\t1\n", "x", "line 1: expected label, text .* without blanks, found"),
    (read_trees, "1\t \n", "x", "line 1: expected label, text between tabs, in this order"),
    (
        partial(read_trees, reads_words=True),
        "1\tit\tworks\n",
        "x",
        "line 1: expected label, text between tabs, in this order, found",
    ),
    (read_pairs, "label\tpremise\thypothesis\n", "x", "line 1: .* and no heading, found 'label"),
    (read_pairs, "A boy\tHe sits\tneutral\n", "x", "line 1: .* a label without blanks, found"),
    (read_columns, "\n\n", "x", "expected sentences, found none"),
    (partial(read_trees, reads_words=True), "(3 (2 a)\n", "x", "line 1: expected a tree"),
    (read_trees, "(3 (2 a) (2 b))\n(3 (2 a)\n", "x", "line 2: expected a tree"),
    (read_trees, "(3 a))\n", "x", "line 1: expected a tree"),
    (read_trees, "(3 a) (2 b)\n", "x", "line 1: expected a tree"),
    (read_trees, "(3 ())\n", "x", "line 1: expected a tree"),
    (read_trees, "It (3 works)\n", "x", "line 1: expected a tree"),
    (read_pairs, "neutral\ta\tb\nneutral\ta\n", "x", "line 2: expected label, premise"),
    (read_pairs, "neutral\ta\t \n", "x", "line 1: expected label, premise, hypothesis"),
    (read_pairs, '{"gold_label": "a"}\n', "x.jsonl", "line 1: expected an object with gold_label"),
    (read_pairs, "label\n", "x.jsonl", "line 1: expected a line of JSON, found 'label'"),
    (read_pairs, "[" * 100_000, "x.jsonl", r"line 1: expected a line of JSON, found '\[{80}'"),
    (read_pairs, '["gold_label"]\n', "x.jsonl", "line 1: expected an object with gold_label"),
    (read_frames, '{"tokens": "He", "frames": []}\n', "x.jsonl", "line 1: expected tokens as a"),
    (read_frames, '{"tokens": ["a", 1], "frames": []}\n', "x.jsonl", "line 1: expected tokens"),
    (read_frames, '{"tokens": ["a"], "frames": null}\n', "x.jsonl", "expected frames as a list"),
    (
        read_frames,
        '{"tokens": ["a"], "frames": [{"v": 0, "args": [["A0", 0, 1]]}]}\n',
        "x.jsonl",
        "line 1: expected spans inside 1 tokens",
    ),
    (
        read_frames,
        '{"tokens": ["a"], "frames": [{"v": 1e999, "args": []}]}\n',
        "x.jsonl",
        "line 1: expected frames with v and args",
    ),
    (
        read_frames,
        '{"tokens": ["a"], "frames": [{"v": 0}]}\n',
        "x.jsonl",
        r"line 1: expected frames with v and args \[label, first, last\]",
    ),
    (
        read_frames,
        '{"tokens": ["a", "b"], "frames": [{"v": 0, "args": [["A0", 0, 1], ["A1", 1, 1]]}]}\n',
        "x.jsonl",
        "line 1: expected roles that do not overlap",
    ),
    (
        read_frames,
        '{"tokens": ["a"], "frames": [{"v": 0, "args": [[null, 0, 0]]}]}\n',
        "x.jsonl",
        "line 1: expected labels of roles as texts",
    ),
    (
        read_frames,
        '{"tokens": ["a", "b"], "frames": [{"v": 1, "args": [["V", 0, 0]]}]}\n' * 10,
        "x.jsonl",
        "expected v in the span V of its frame, found 10 of 10 outside of it. Positions",
    ),
    (
        read_frames,
        '{"tokens": ["a"], "frames": [{"v": -1, "args": []}]}\n',
        "x.jsonl",
        "line 1: expected spans inside 1 tokens",
    ),
    (read_frames, '{"tokens": ["a"], "frames": []}\n', "x.jsonl", "predicates, found none"),
    (read_frames, "a " * 11, "x", "line 1: expected at least 12 columns, found 'a a a"),
    (
        read_frames,
        "x 0 0 w NN (S* - - - - * (V*) -\nx 0 1 w NN *) - - - - * * * -\n",
        "x",
        "line 2: expected 13 columns",
    ),
    (
        read_frames,
        '{"tokens": ["a"], "frames": [{"v": 0, "args": [["", 0, 0]]}]}\n',
        "x.jsonl",
        "line 1: expected labels of roles as texts that are not empty",
    ),
    (
        read_frames,
        "x 0 0 w NN (S* - - - - * (ARG1* -\n",
        "x",
        r"line 1: expected roles such as \(ARG0\*",
    ),
    (read_documents, make_document(["(1", "-"]), "x", "line 4: expected every mention to end"),
    (read_documents, make_document(["1)", "-"]), "x", r"line 2: expected mentions such as"),
    (read_documents, make_document(["?", "-"]), "x", r"line 2: expected mentions such as"),
    (read_documents, "x 0 0 word _ _\n", "x", "line 1: expected #begin document"),
    (read_documents, "#begin document x\nx 0 0 -\n", "x", "line 2: expected #begin document"),
    (read_documents, "\n", "x", "expected documents, found none"),
]


@pytest.mark.parametrize(("read", "text", "name", "message"), BAD)
def test_a_bad_file_is_refused(
    read: Callable[[Path], Any], text: str, name: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path, text, name))


DATA: list[tuple[Callable[[Path], Any], str, int]] = [
    (read_columns, "ner/wikigold/dev.conll.gz", 254),
    (read_trees, "sst5/dev.txt.gz", 1101),
    (read_pairs, "snli_sample/dev.tsv.gz", 985),
    (read_documents, "coref/litbank/dev.conll.gz", 10),
    (read_frames, "srl/propbank_ewt/dev.jsonl.gz", 4910),
]


@pytest.mark.parametrize(("read", "name", "count"), DATA)
def test_the_field_s_own_files_are_read_whole(
    read: Callable[[Path], Any], name: str, count: int, shared: Path
) -> None:
    assert len(read(shared / "data" / name)) == count


EXAMPLES = (Path(__file__).parents[4] / "docs" / "tasks.md").read_text().split("## Formats")[1]


BLOCKS = re.findall(r"```(?:text|json)\n(.*?)```", EXAMPLES, flags=re.DOTALL)


READERS: list[tuple[Callable[[Path], Any], str]] = [
    (read_columns, "x.conll"),
    (read_trees, "x.txt"),
    (read_pairs, "x.txt"),
    (read_frames, "x.jsonl"),
    (read_frames, "x.conll"),
    (read_questions, "x.json"),
    (read_documents, "x.conll"),
]


@pytest.mark.parametrize(("place", "reader"), list(enumerate(READERS)))
def test_the_examples_of_the_docs_are_read(
    place: int, reader: tuple[Callable[[Path], Any], str], tmp_path: Path
) -> None:
    read, name = reader
    assert read(write(tmp_path, BLOCKS[place], name))


HURTFUL = [b"", b"\0", b"\xff", b"\n", b"\t", b" ", b"(", b")", b"*", b"[" * 9999, b"1e999"]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "reader"), list(enumerate(READERS)))
@settings(max_examples=200, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 9), st.sampled_from(HURTFUL)), max_size=4
    )
)
def test_a_damaged_file_raises_only_the_documented_error(
    place: int,
    reader: tuple[Callable[[Path], Any], str],
    edits: list[tuple[int, int, bytes]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data = BLOCKS[place].encode()
    for position, length, replacement in edits:
        start = position % (len(data) + 1)
        data = data[:start] + replacement + data[start + length :]
    read, name = reader
    path = tmp_path_factory.getbasetemp() / f"damaged-{place}-{name}"
    path.write_bytes(data)
    with suppress(ValueError):
        read(path)


@pytest.mark.parametrize(
    ("read", "text", "lines"),
    [
        (read_columns, "-DOCSTART- O\n\n# a longer note\na O\n\n\nb O\nc O\n", [4, 7]),
        (read_trees, "\nbad\ta b\n\ngood\tc\n", [2, 4]),
        (read_pairs, "x\ta\tb\n\n-\tc\td\ny\te\tf\n", [1, 4]),
        (read_frames, "\nx 0 0 a NN * - - - - * (V*) -\n\nx 0 0 b NN * - - - - * (V*) -\n", [2, 4]),
    ],
)
def test_examples_know_the_lines_that_they_begin_at(
    read: Callable[[Path], list[Any]], text: str, lines: list[int], tmp_path: Path
) -> None:
    assert [example.line for example in read(write(tmp_path, text))] == lines

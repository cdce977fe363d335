"""Readers of the field's formats: what they read, and how they refuse."""

import gzip
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hf_elmo.tasks.data.labels import Span
from hf_elmo.tasks.data.readers import (
    Document,
    Frame,
    LabelledSentence,
    Pair,
    TaggedSentence,
    read_columns,
    read_documents,
    read_frames,
    read_pairs,
    read_trees,
)
from hf_elmo.tasks.squad import read_questions


def strip(examples: list[Any]) -> list[Any]:
    return [example._replace(line=0) for example in examples]


def write(tmp_path: Path, text: str, name: str = "data.txt") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_columns_become_sentences_with_spans(tmp_path: Path) -> None:
    text = "-DOCSTART- -X- O\n\nMark NNP I-PER\nWatney NNP I-PER\nat IN O\n\n\nMars NNP S-LOC\n"
    assert strip(read_columns(write(tmp_path, text))) == [
        TaggedSentence(["Mark", "Watney", "at"], [Span("PER", 0, 1)]),
        TaggedSentence(["Mars"], [Span("LOC", 0, 0)]),
    ]


def test_compressed_columns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data.conll.gz"
    path.write_bytes(gzip.compress(b"a\tB-X\nb\tI-X"))
    assert strip(read_columns(path)) == [TaggedSentence(["a", "b"], [Span("X", 0, 1)])]


def test_a_no_break_space_is_part_of_a_word(tmp_path: Path) -> None:
    path = write(tmp_path, "New\u00a0York B-LOC\n")
    assert strip(read_columns(path)) == [TaggedSentence(["New\u00a0York"], [Span("LOC", 0, 0)])]
    path = write(tmp_path, "a\tNew\u00a0York\tB\n")
    assert strip(read_pairs(path)) == [Pair(["New\u00a0York"], ["B"], "a")]


def test_a_no_break_space_alone_is_no_word(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1: expected a word and its tag"):
        read_columns(write(tmp_path, "\u00a0\tO\n"))


def test_a_blank_before_a_tab_is_not_part_of_the_word(tmp_path: Path) -> None:
    path = write(tmp_path, "New York \tB-LOC\n grows\tO\n")
    assert strip(read_columns(path)) == [TaggedSentence(["New York", "grows"], [Span("LOC", 0, 0)])]


TREE = r"(3 (2 It) (4 (3 works) (2 -LRB-)))"
ESCAPED_TREE = r"(1 (2 \*\*) (2 and\/or))"


def test_trees_become_sentences(tmp_path: Path) -> None:
    assert strip(read_trees(write(tmp_path, TREE))) == [LabelledSentence(["It", "works", "("], "3")]
    (escaped,) = read_trees(write(tmp_path, ESCAPED_TREE))
    assert escaped.words == ["**", "and/or"]


def test_phrases_of_trees_are_read_on_request(tmp_path: Path) -> None:
    phrases = read_trees(write(tmp_path, TREE), min_phrase=2)
    assert strip(phrases[1:]) == [LabelledSentence(["works", "("], "4")]


def test_sentences_are_read_with_a_label_before_a_tab(tmp_path: Path) -> None:
    path = write(tmp_path, f"good\tIt works .\nbad\tIt ( fails )\n{TREE}\n")
    for reads_words in (False, True):
        assert strip(read_trees(path, reads_words=reads_words, min_phrase=2)[:3]) == [
            LabelledSentence(["It", "works", "."], "good"),
            LabelledSentence(["It", "(", "fails", ")"], "bad"),
            LabelledSentence(["It", "works", "("], "3"),
        ]


def test_pairs_are_read_from_json_whatever_the_file_is_called(tmp_path: Path) -> None:
    line = '{"gold_label": "a", "sentence1_binary_parse": "A", "sentence2_binary_parse": "( B )"}\n'
    assert strip(read_pairs(write(tmp_path, line, "snli.json"))) == [Pair(["A"], ["B"], "a")]


def test_pairs_are_read_from_tabs(tmp_path: Path) -> None:
    path = write(tmp_path, "neutral\tA boy .\tHe sits .\n-\tA\tB\n")
    assert strip(read_pairs(path)) == [Pair(["A", "boy", "."], ["He", "sits", "."], "neutral")]


def test_pairs_are_read_from_json_lines(tmp_path: Path) -> None:
    line = (
        r'{"gold_label": "neutral", "sentence1_binary_parse": "( ( -LRB- and\\/or ) . )", '
        '"sentence2_binary_parse": "( He sits )"}\n'
    )
    path = write(tmp_path, line, "snli.jsonl")
    assert strip(read_pairs(path)) == [Pair(["(", "and/or", "."], ["He", "sits"], "neutral")]


def test_words_are_read_without_tags_for_prediction(tmp_path: Path) -> None:
    path = write(tmp_path, "The\nold\ncat\n\nNo\n")
    sentences = [TaggedSentence(["The", "old", "cat"], []), TaggedSentence(["No"], [])]
    assert strip(read_columns(path, reads_tags=False)) == sentences


@pytest.mark.parametrize("reads_tags", [True, False])
def test_comments_before_a_sentence_are_no_words(reads_tags: bool, tmp_path: Path) -> None:
    text = "# id 7 O\n# domain = x\na\tO\n#\tB-X\n\n# text O\n#\tO\n"
    sentences = [TaggedSentence(["a", "#"], [Span("X", 1, 1)]), TaggedSentence(["#"], [])]
    assert strip(read_columns(write(tmp_path, text), reads_tags=reads_tags)) == sentences
    text = "# O\n# number of words\na O\n"  # a word, as its columns are as many
    with pytest.raises(ValueError, match="line 2: expected 2 columns, as in other lines, found"):
        read_columns(write(tmp_path, text), reads_tags=reads_tags)


def test_sentences_are_read_without_labels_for_prediction(tmp_path: Path) -> None:
    path = write(tmp_path, f"It works .\n( Laughs ) Good .\n{TREE}")
    sentences = [
        LabelledSentence(["It", "works", "."], ""),
        LabelledSentence(["(", "Laughs", ")", "Good", "."], ""),
        *strip(read_trees(write(tmp_path, TREE, "t"))),
    ]
    assert strip(read_trees(path, reads_words=True)) == sentences


@pytest.mark.parametrize(
    "line",
    [
        *("( He left . )", "( It works )", "( He ( the boss ) left )", "(He (the boss) left)"),
        *("(2 of them left)", "( 2 of them left )", "(3 works now)"),
        *("(a)", "( good )", "( He ( left ) )", "( He ( really left ) )", "( a b ) ( c d )"),
    ],
)
def test_a_sentence_in_brackets_is_no_tree_in_prediction(line: str, tmp_path: Path) -> None:
    (sentence,) = read_trees(write(tmp_path, line), reads_words=True)
    assert sentence.words == line.split()


@pytest.mark.parametrize(
    "line",
    [
        *(
            "(3 works)",
            "(-1 works)",
            "(3 (2 works))",
            "(3 (2 It) (3 works))",
            "( -1 ( 0 It ) ( 1 works ) )",
        ),
        *("(good (x It) (y works))", "( good ( x It ) ( y ( z works ) ( z works ) ) )"),
    ],
)
def test_trees_are_read_in_prediction(line: str, tmp_path: Path) -> None:
    (sentence,) = read_trees(write(tmp_path, line), reads_words=True)
    assert sentence.words[-1] == "works"


def test_a_pair_with_the_label_null_has_no_label(tmp_path: Path) -> None:
    parse = '"sentence1_binary_parse": "a", "sentence2_binary_parse": "b"'
    lines = [f'{{"gold_label": {label}, {parse}}}\n' for label in ("null", '""', '"x"')]
    path = write(tmp_path, "".join(lines))
    assert [pair.label for pair in read_pairs(path)] == ["x"]


def test_a_pair_needs_two_sentences(tmp_path: Path) -> None:
    line = '{"gold_label": "x", "sentence1_binary_parse": null, "sentence2_binary_parse": "b"}'
    with pytest.raises(ValueError, match="two sentences with words"):
        read_pairs(write(tmp_path, line))


@pytest.mark.parametrize("place", ["1.9", "true", '"1"', "1e400"])
def test_a_position_is_an_integer(place: str, tmp_path: Path) -> None:
    line = f'{{"tokens": ["a", "b"], "frames": [{{"v": {place}, "args": []}}]}}'
    with pytest.raises(ValueError, match="v and args of integers"):
        read_frames(write(tmp_path, line, "data.jsonl"))


def test_pairs_without_a_label_are_read_for_prediction(tmp_path: Path) -> None:
    path = write(tmp_path, "-\tA boy\tHe sits\n")
    assert strip(read_pairs(path, keeps_all=True)) == [Pair(["A", "boy"], ["He", "sits"], "-")]


FRAME = Frame(["The", "cat", "sat"], 2, [Span("ARG1", 0, 1)])


def test_frames_are_read_from_json_lines_bare_ones_too(tmp_path: Path) -> None:
    line = (
        '{"tokens": ["The", "cat", "sat"], "frames": [{"v": 2, "args": [["ARG1", 0, 1], '
        '["V", 2, 2]]}, {"v": 1, "args": [["V", 1, 1]]}]}\n'
    )
    bare = Frame(["The", "cat", "sat"], 1, [])
    assert strip(read_frames(write(tmp_path, line, "srl.jsonl"))) == [FRAME, bare]


def test_a_few_predicates_may_be_outside_of_their_spans(tmp_path: Path) -> None:
    line = (
        '{"tokens": ["Go", "on"], "frames": [{"v": 0, "args": [["V", 0, 1]]}, '
        '{"v": 1, "args": [["V", 0, 0]]}]}\n'
    )
    assert [one.predicate for one in read_frames(write(tmp_path, line, "srl.jsonl"))] == [0, 1]


def test_frames_are_read_from_columns(tmp_path: Path) -> None:
    row = "nw/x 0 {} {} NN (S* - - - - * {} -\n"
    rows = [
        row.format(0, "The", "(ARG1*"),
        row.format(1, "cat", "*)"),
        row.format(2, "sat", "(V*)"),
    ]
    assert strip(read_frames(write(tmp_path, "#begin document (x);\n" + "".join(rows)))) == [FRAME]


def test_columns_without_coreference_are_refused(tmp_path: Path) -> None:
    rows = ["nw/x 0 0 The NN (S* - - - - * (V*)\n", "nw/x 0 0 The NN (S* - - - - * (V*) (V*)\n"]
    for row in rows:
        with pytest.raises(ValueError, match="line 1: expected coreference, or -, in the last"):
            list(read_frames(write(tmp_path, row)))


def make_document(cells: list[str], breaks: int = 2) -> str:
    rows = [f"x\t0\t{row}\tw{row}\t_\t{cell}\n" for row, cell in enumerate(cells)]
    return "#begin document (x); part 0\n" + "".join(rows[:breaks]) + "\n" + "".join(rows[breaks:])


def test_documents_are_read_without_lone_and_repeated_mentions(tmp_path: Path) -> None:
    cells = ["(1|(2)", "-", "(1)|1)", "(2)|(2)", "(3)|(3)"]
    assert read_documents(write(tmp_path, make_document(cells))) == [
        Document(
            "(x); part 0",
            [["w0", "w1"], ["w2", "w3", "w4"]],
            [[(0, 0), (3, 3)], [(0, 2), (2, 2)]],
        )
    ]


def test_documents_of_one_file_share_no_words_and_no_mentions(tmp_path: Path) -> None:
    text = make_document(["(1)", "(1)"]) + "#end document\n" + make_document(["(1)", "-", "(1)"])
    first, second = read_documents(write(tmp_path, text))
    assert first.clusters == [[(0, 0), (1, 1)]]
    assert second.clusters == [[(0, 0), (2, 2)]]


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
    (read_pairs, "[" * 100_000, "x.jsonl", "line 1: expected a line of JSON"),
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
    (read_frames, "a b c\n", "x", "line 1: expected at least 12 columns, found 'a b c'"),
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
]


@pytest.mark.parametrize(("read", "text", "name", "message"), BAD)
def test_a_bad_file_is_refused(
    read: Callable[[Path], Any], text: str, name: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path, text, name))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"a\tO\n\xff\tO\n")
    with pytest.raises(ValueError, match=r"Expected UTF-8 in .* line 2"):
        read_columns(path)


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


@pytest.mark.parametrize(
    ("read", "text", "lines"),
    [
        (read_columns, "-DOCSTART- O\n\n# a longer note\na O\n\n\nb O\nc O\n", [4, 7]),
        (read_trees, "\nbad\ta b\n\ngood\tc\n", [2, 4]),
        (read_pairs, "x\ta\tb\n\n-\tc\td\ny\te\tf\n", [1, 4]),
    ],
)
def test_examples_know_the_lines_that_they_begin_at(
    read: Callable[[Path], list[Any]], text: str, lines: list[int], tmp_path: Path
) -> None:
    assert [example.line for example in read(write(tmp_path, text))] == lines

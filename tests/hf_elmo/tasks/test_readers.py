"""Readers of all formats: what they read, and the one error of each format."""

import gzip
import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from task_files import make_document, strip, write

from hf_elmo.tasks.labels import Span
from hf_elmo.tasks.readers import (
    Document,
    Frame,
    LabelledSentence,
    Pair,
    TaggedSentence,
    read_columns,
    read_documents,
    read_frames,
    read_pairs,
    read_questions,
    read_trees,
)

PAIR = '{{"gold_label": "x", "sentence1_binary_parse": {}, "sentence2_binary_parse": {}}}\n'
FRAME = '{{"tokens": ["a", "b"], "frames": [{{"v": {}, "args": [{}]}}]}}\n'
ROLE = "x 0 0 w NN (S* - - - - * {} {}\n"


def make_questions(answers: list[tuple[str, int]], passage: str = "The cat's friend sat.") -> str:
    given = [{"text": text, "answer_start": start} for text, start in answers]
    questions = [{"id": "q", "question": "Who sat?", "answers": given}]
    return json.dumps({"data": [{"paragraphs": [{"context": passage, "qas": questions}]}]})


BAD: list[tuple[Callable[[Path], Any], str, str, str]] = [
    (read_columns, "a\tO\nb\n", "x", "line 2: expected 2 columns, a word .*, found 'b'"),
    (read_columns, "a\tO\n# x y\nb\tO\n", "x", "line 2: expected 2 columns"),
    (read_columns, "a\tO-PER\n", "x", r"line 1: .* last a tag such as .* found 'a\\tO-PER'"),
    (read_columns, "0 a O\n1 b O\n", "x", "expected words in the first column, found their num"),
    (partial(read_columns, reads_tags=False), "It works\n", "x", "line 1: .*, or a word alone"),
    (partial(read_columns, reads_tags=False), "a\n\u00a0\nb\n", "x", "line 2: .*, or a word alone"),
    (read_columns, "\n\n", "x", "expected sentences, found none"),
    (read_trees, "label\ttext\n1\ta\n", "x", "line 1: expected a tree .* found 'label"),
    (read_trees, "it works\t1\n", "x", "line 1: expected a tree"),
    (read_trees, "(3 (2 a) (2 b))\n(3 (2 a)\n", "x", "line 2: expected a tree"),
    (partial(read_trees, reads_words=True), "(3 (2 a)\n", "x", "line 1: expected a tree"),
    (partial(read_trees, reads_words=True), "1\tit\tworks\n", "x", "line 1: expected a tree"),
    (read_pairs, "label\tpremise\thypothesis\n", "x", "line 1: expected a label, a premise"),
    (read_pairs, "neutral\ta\tb\nneutral\ta\t \n", "x", "line 2: expected a label"),
    (read_pairs, '{"gold_label": "a"}\n', "x", "line 1: expected .* SNLI's JSON, found '{"),
    (read_pairs, PAIR.format("null", '"b"'), "x", "line 1: expected a label"),
    (read_frames, "[" * 100_000, "x.jsonl", r"line 1: expected tokens, .* found '\[{80}'"),
    (read_frames, '{"tokens": ["a"], "frames": []}\n', "x.jsonl", "predicates, found none"),
    (
        read_frames,
        FRAME.format(0, '["A0", 0, 2]'),
        "x.jsonl",
        "line 1: expected tokens, and",
    ),
    (read_frames, FRAME.format(0, '["A", 0, 1], ["B", 1, 1]'), "x.jsonl", "that do not overlap"),
    (read_frames, FRAME.format(0, "[null, 0, 0]"), "x.jsonl", "line 1: expected tokens"),
    (read_frames, FRAME.format("true", ""), "x.jsonl", "line 1: expected tokens"),
    (read_frames, FRAME.format("1e999", ""), "x.jsonl", "line 1: expected tokens"),
    (read_frames, FRAME.format(-1, ""), "x.jsonl", "line 1: expected tokens"),
    (read_frames, "a " * 11, "x", "line 1: expected 12 or more columns .* found 'a a a"),
    (read_frames, ROLE.format("(ARG0*)", "-"), "x", "one of them V"),
    (read_frames, ROLE.format("(V*", "-"), "x", "one of them V"),
    (read_frames, ROLE.format("(V*)", "(V*)"), "x", "line 1: expected 12 or more columns"),
    (read_frames, ROLE.format("(V*)", "-") + "x 0 1 w\n", "x", "line 1: expected 12 or more"),
    (read_documents, make_document(["(1", "-"]), "x", "line 4: expected .* each closed in its doc"),
    (read_documents, make_document(["1)", "-"]), "x", "line 2: expected #begin document"),
    (read_documents, make_document(["?", "-"]), "x", "line 2: expected #begin document"),
    (read_documents, "x 0 0 word _ _\n", "x", "line 1: expected #begin document"),
    (read_documents, "\n", "x", "expected documents, found none"),
    (read_questions, "{", "x", "line 1: expected JSON with SQuAD's data"),
    (read_questions, '{"data": [{"title": "t"}]}', "x", "line 1: expected JSON with SQuAD's data"),
    (read_questions, make_questions([]), "x", "question q: expected an id, words, and answers at"),
    (read_questions, make_questions([("cat", 5)]), "x", "question q: expected an id"),
    (read_questions, make_questions([("sat", -4)]), "x", "question q: expected an id"),
    (read_questions, make_questions([("", 0)]), "x", "question q: expected an id"),
    (partial(read_questions, use="predict"), make_questions([], " "), "x", "question q: expected"),
    (read_columns, "a\tO\r\n\udcff", "x", "expected UTF-8, got after line 1"),
]


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


EXAMPLES = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text().split("## Formats")[1]


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
    with pytest.raises(ValueError, match="line 2: expected 2 columns"):
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


def test_pairs_without_a_label_are_read_for_prediction(tmp_path: Path) -> None:
    path = write(tmp_path, "-\tA boy\tHe sits\n")
    assert strip(read_pairs(path, keeps_all=True)) == [Pair(["A", "boy"], ["He", "sits"], "-")]


CAT_FRAME = Frame(["The", "cat", "sat"], 2, [Span("ARG1", 0, 1)])


def test_frames_are_read_from_json_lines_bare_ones_too(tmp_path: Path) -> None:
    line = (
        '\n{"tokens": ["The", "cat", "sat"], "frames": [{"v": 2, "args": [["ARG1", 0, 1], '
        '["V", 2, 2]]}, {"v": 1, "args": [["V", 1, 1]]}]}\n'
    )
    bare = Frame(["The", "cat", "sat"], 1, [])
    frames = read_frames(write(tmp_path, line, "srl.jsonl"))
    assert strip(frames) == [CAT_FRAME, bare]
    assert [frame.line for frame in frames] == [2, 2]


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
    assert strip(read_frames(write(tmp_path, "#begin document (x);\n" + "".join(rows)))) == [
        CAT_FRAME
    ]


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


def test_clusters_are_in_the_order_of_their_first_mentions(tmp_path: Path) -> None:
    cells = ["(a", "(b)", "_", "(b)", "(a)|a)"]  # b is the first that ends
    (document,) = read_documents(write(tmp_path, make_document(cells)))
    assert document.clusters == [[(0, 4), (4, 4)], [(1, 1), (3, 3)]]


def test_sentences_and_documents_without_words_are_left_out(tmp_path: Path) -> None:
    words = make_document(["-", "-", "-"]).replace("\n\n", "\n\n\n")
    text = f"#begin document (empty);\n\n#end document\n{words}"
    (document,) = read_documents(write(tmp_path, text))
    assert document.sentences == [["w0", "w1"], ["w2"]]


def test_questions_are_read_with_the_words_of_their_answers(tmp_path: Path) -> None:
    data = json.loads(make_questions([("cat", 4), ("friend", 10)]))
    data["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["ambiguous"] = True
    (question,) = read_questions(write(tmp_path, json.dumps(data)))
    assert question.words == ["The", "cat", "'s", "friend", "sat", "."]
    assert question.question == ["Who", "sat", "?"]
    assert question.answers == ["cat", "friend"]
    assert question.span == (3, 3)
    assert question.cut((1, 3)) == "cat's friend"


def test_training_skips_a_question_without_a_sure_answer(tmp_path: Path) -> None:
    text = make_questions([("cat", 4)]).replace(
        '"answer_start"', '"ambiguous": true, "answer_start"'
    )
    path = write(tmp_path, text)
    assert len(read_questions(path)) == 1
    with pytest.raises(ValueError, match="expected questions, found none"):
        read_questions(path, "train")


def test_answers_are_not_read_for_prediction(tmp_path: Path) -> None:
    (question,) = read_questions(write(tmp_path, make_questions([("cat", 99)])), "predict")
    assert question.answers == []


def test_all_schemes_give_the_same_spans(tmp_path: Path) -> None:
    spans = [Span("A", 0, 0), Span("A", 1, 3), Span("B", 5, 6)]
    for tags in (
        "B-A B-A I-A I-A O B-B I-B",
        "U-A B-A I-A L-A O B-B L-B",
        "S-A B-A I-A E-A O B-B E-B",
        "S-A B-A M-A E-A O B-B E-B",
    ):
        path = write(tmp_path, "".join(f"w {tag}\n" for tag in tags.split()))
        assert read_columns(path)[0].spans == spans


def test_only_line_feeds_end_lines_and_carriage_returns_are_cut(tmp_path: Path) -> None:
    path = write(tmp_path, "a\u2028b\tO\r\nb\tB-X\r\n \t\nc\tO\n")
    assert [x.words for x in read_columns(path)] == [["a\u2028b", "b"], ["c"]]

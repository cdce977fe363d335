import gzip
from pathlib import Path

import pytest
from task_files import strip, write

from hf_elmo.tasks.data.labels import Span
from hf_elmo.tasks.data.sentences import (
    LabelledSentence,
    Pair,
    TaggedSentence,
    read_columns,
    read_pairs,
    read_trees,
)


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
    with pytest.raises(ValueError, match="line 2: expected a word, found"):
        read_columns(write(tmp_path, "Marta\n\u00a0\npaid\n"), reads_tags=False)


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


def test_pairs_without_a_label_are_read_for_prediction(tmp_path: Path) -> None:
    path = write(tmp_path, "-\tA boy\tHe sits\n")
    assert strip(read_pairs(path, keeps_all=True)) == [Pair(["A", "boy"], ["He", "sits"], "-")]

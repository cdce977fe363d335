import gzip
import io
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sentence_files import write

from hf_elmo.text import text_reader as text_module
from hf_elmo.text.text_reader import (
    read_dataset,
    read_files,
    read_sentences,
)


def test_lines_become_words_in_the_order_of_the_files(tmp_path: Path) -> None:
    files = write(tmp_path, a=["The bank .", "", "  ", "A river"], b=["é 你"])

    sentences = list(read_files(files)(None))

    assert sentences == [["The", "bank", "."], ["A", "river"], ["é", "你"]]


def test_utf_16_without_a_mark_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("The bank\n".encode("utf-16le"))
    with pytest.raises(ValueError, match=r"got a NUL in line 1.*iconv -f utf-16le"):
        list(read_files([tmp_path / "a.txt"])(None))
    with pytest.raises(ValueError, match="got a NUL in line 1"):
        list(read_sentences(io.BytesIO(b"a\0b\n"), "text"))


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_weight_says_how_often_a_pass_goes_over_files(tmp_path: Path, seed: int | None) -> None:
    old, new, other = write(tmp_path, old=["o"] * 1000, new=["n"] * 100, other=["x"] * 10)
    text = read_files([f"{old}=0.25", f"{new}=2.5", other], has_weights=True)

    counts = Counter(word for (word,) in text(None if seed is None else random.Random(seed)))

    assert 200 < counts["o"] < 300
    assert 230 < counts["n"] < 270
    assert counts["x"] == 10


def test_a_weighted_pass_takes_another_share_each_time(tmp_path: Path) -> None:
    (file,) = write(tmp_path, a=[str(i) for i in range(100)])
    text = read_files([f"{file}=0.5"], has_weights=True)

    first, second = (sorted(text(random.Random(seed))) for seed in (1, 2))

    assert first != second
    assert first == sorted(text(random.Random(1)))


def test_a_dataset_gives_the_lines_of_its_column() -> None:
    examples = [{"body": "One sentence .\n\nAnother one ."}, {"body": "A third"}]

    sentences = list(read_dataset(examples, "body")(None))

    assert sentences == [["One", "sentence", "."], ["Another", "one", "."], ["A", "third"]]


def test_a_dataset_may_hold_words_and_lack_texts() -> None:
    examples = [{"text": ["EU", "rejects"]}, {"text": None}, {"text": []}]
    assert list(read_dataset(examples)(None)) == [["EU", "rejects"]]
    with pytest.raises(ValueError, match="Expected text or words in column 'text', got 3"):
        list(read_dataset([{"text": 3}])(None))


def test_the_text_of_a_dataset_is_checked_like_that_of_a_file() -> None:
    assert list(read_dataset([{"text": "\ufeffEU rejects"}])(None)) == [["EU", "rejects"]]
    with pytest.raises(ValueError, match="got a NUL in line 2"):
        list(read_dataset([{"text": "a\nb\0c"}])(None))


def test_raw_text_of_a_dataset_is_cut_as_that_of_files() -> None:
    text = read_dataset([{"text": "It's here. Yes."}], input_format="raw")
    assert list(text(None)) == [["It", "'s", "here", "."], ["Yes", "."]]


def test_a_dataset_can_be_read_again_and_shuffled() -> None:
    text = read_dataset([{"text": str(i)} for i in range(50)])

    shuffled = list(text(random.Random(0)))

    assert shuffled != list(text(None))
    assert sorted(shuffled) == sorted(text(None))


def test_a_dataset_without_the_column_is_an_error() -> None:
    with pytest.raises(ValueError, match="Expected a column 'text' of text, got body"):
        list(read_dataset([{"body": "x"}])(None))


@pytest.mark.parametrize(
    ("lines", "input_format", "message"),
    [
        (
            [b"good\n", b"na\xefve\n"],
            "text",
            "UTF-8 in x.txt, got byte 0xef in line 2, column 3",
        ),
        (
            [b"1\tword\n"],
            "conllu",
            "Line 1 of x.txt is not CoNLL-U: expected 10 columns between tabs, got 2",
        ),
    ],
)
def test_malformed_text_is_refused_by_its_line(
    lines: list[bytes], input_format: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        list(read(lines, input_format))


def read(lines: list[bytes], input_format: Any, pipeline: str = "en") -> Iterator[list[str]]:
    return read_sentences(io.BytesIO(b"".join(lines)), input_format, pipeline, "x.txt")


@pytest.mark.parametrize("form", ["text", "raw", "conllu"])
def test_a_byte_order_mark_alone_is_no_sentence(form: str) -> None:
    assert list(read(["\ufeff".encode()], form)) == []


def test_byte_order_marks_of_joined_files_are_left_out() -> None:
    lines = ["\ufeffA\n", "\ufeffbank\n", "\ufeff is\n", "\ufeff\n"]
    expected = [["A"], ["bank"], ["\ufeff", "is"], ["\ufeff"]]  # a word if alone
    assert list(read([line.encode() for line in lines], "text")) == expected


def test_text_is_a_sentence_a_line() -> None:
    lines = ["\ufeffThe  bank\r\n", "\n", " A river\u2028bank"]
    sentences = list(read([line.encode() for line in lines], "text"))
    assert sentences == [["The", "bank"], [], ["A", "river", "bank"]]


CONLLU = ["# text = vámonos", "1-2\tvámonos", "1\tvamos", "2\tnos", "2.1\tgap", "", "", "1\tfin"]


CONLLU_LINES = [(row + "\t_" * 8 if "\t" in row else row).encode() + b"\n" for row in CONLLU]


@pytest.mark.parametrize("ids", [["1", "2a"], ["1", "3"], ["1", "1"], [" 1"]])
def test_conllu_with_other_ids_is_refused(ids: list[str]) -> None:
    lines = [f"{number}\tword".encode() + b"\t_" * 8 + b"\n" for number in ids]
    with pytest.raises(ValueError, match=f"Line {len(ids)} of .*, got '{ids[-1]}'"):
        list(read(lines, "conllu"))


def test_conllu_gives_its_syntactic_words() -> None:
    assert list(read(CONLLU_LINES, "conllu")) == [["vamos", "nos"], ["fin"]]


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_files_to_train_on_may_be_conllu(tmp_path: Path, seed: int | None) -> None:
    (tmp_path / "a.conllu.gz").write_bytes(gzip.compress(b"".join(CONLLU_LINES)))
    text = read_files([tmp_path / "a.conllu.gz"], "conllu")

    assert sorted(text(None if seed is None else random.Random(seed))) == [
        ["fin"],
        ["vamos", "nos"],
    ]


def test_raw_text_is_cut_by_spacy() -> None:
    lines = [b"The bank's rates rose.  A  river. \n", b"  \n", b"New\tline"]
    sentences = list(read(lines, "raw", "en"))
    assert sentences == [
        ["The", "bank", "'s", "rates", "rose", "."],
        ["A", "river", "."],
        ["New", "line"],
    ]


def test_a_line_of_raw_text_may_have_more_than_a_million_characters() -> None:
    word = "abcdefghi" * 9
    assert list(read([f"{word} ".encode() * 12_500], "raw", "en")) == [[word] * 12_500]


PARAGRAPH = "The old man sat down by the river and looked at the water. He was tired. "


def test_a_folder_named_like_the_language_is_no_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fi").mkdir()
    assert list(read([b"Yksi talo."], "raw", "fi")) == [["Yksi", "talo", "."]]


def test_raw_text_leaves_its_words_out_of_the_vocab_of_the_pipeline() -> None:
    strings = text_module._load_pipeline("en").vocab.strings
    list(read([b"A first text."], "raw", "en"))
    before = len(strings)
    lines = [f"word{number} .\n".encode() for number in range(2 * text_module.LINES_AT_ONCE)]
    assert list(read(lines, "raw", "en")) == [line.decode().split() for line in lines]
    assert len(strings) == before


def test_a_language_whose_tokenizer_is_missing_gets_the_error_of_spacy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(name: str) -> None:
        raise ImportError("Install SudachiPy.")

    monkeypatch.setattr("spacy.blank", load)
    with pytest.raises(ValueError, match=r"got 'ja'.*Install SudachiPy\."):
        list(read([b"text"], "raw", "ja"))


def test_an_unknown_language_is_told() -> None:
    with pytest.raises(ValueError, match="Expected a spaCy language or pipeline, got 'xq'"):
        list(read([b"text"], "raw", "xq"))


def test_an_unknown_format_is_an_error(tmp_path: Path) -> None:
    for read in (
        lambda form: read_files(write(tmp_path, a=["x"]), form),
        lambda form: read_dataset([{"text": "x"}], input_format=form),
        lambda form: read_sentences(io.BytesIO(b"x"), form),
    ):
        with pytest.raises(ValueError, match="of the formats text, raw, conllu, got 'CoNLLU'"):
            read("CoNLLU")

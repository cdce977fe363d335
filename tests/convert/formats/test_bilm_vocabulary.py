"""Vocabularies are read as bilm-tf reads them."""

from pathlib import Path

import pytest

from convert import ConversionError
from convert.formats.bilm_vocabulary import read_vocabulary
from hf_elmo.language_model.vocabulary import write_words

WORDS = ("<S>", "</S>", "<UNK>", "naïve", "a\u2028b")


def test_words_come_back(tmp_path: Path) -> None:
    write_words(tmp_path / "vocab.txt", WORDS)
    assert read_vocabulary(tmp_path / "vocab.txt", len(WORDS), "the softmax") == WORDS


def test_white_space_and_the_line_that_is_no_word_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"<S>\r\n the \t\n!!!MAXTERMID\nbank")
    assert read_vocabulary(path, 3, "the softmax") == ("<S>", "the", "bank")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"a\nb\n", "vocab.txt: expected 3 words, one per row of the softmax, got 2"),
        (b"a\nb\n\xff\n", "vocab.txt: expected UTF-8 with one word per line, got"),
    ],
)
def test_other_files_are_refused(data: bytes, error: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(data)
    with pytest.raises(ConversionError, match=error):
        read_vocabulary(tmp_path / "vocab.txt", 3, "the softmax")

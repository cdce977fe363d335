from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from hf_elmo.language_model.vocabulary import (
    SPECIAL_WORDS,
    TargetVocabulary,
    build_pieces,
    build_vocabulary,
    count_words,
)


def test_words_are_sorted_by_count_then_by_name_after_the_special_ones() -> None:
    counts = count_words([["b", "a", "c"], ["c", "a"], ["c", "<S>"]])

    vocabulary = build_vocabulary(counts)

    assert vocabulary.words == ["<S>", "</S>", "<UNK>", "c", "a", "b"]


def test_size_counts_the_special_words_and_rare_words_are_left_out() -> None:
    counts = Counter({"a": 5, "b": 4, "c": 1})

    assert build_vocabulary(counts, max_size=4).words[3:] == ["a"]
    assert build_vocabulary(counts, min_count=4).words[3:] == ["a", "b"]


def test_words_outside_become_unknown() -> None:
    vocabulary = TargetVocabulary(["<S>", "</S>", "<UNK>", "a"])

    assert vocabulary.convert_words_to_ids(["a", "x", "</S>", "<S>"]) == [3, 2, 1, 0]


def test_special_words_may_stand_anywhere() -> None:
    vocabulary = TargetVocabulary(["a", "</S>", "<UNK>", "<S>"])

    assert vocabulary.special_ids == [3, 1, 2]
    assert vocabulary.convert_words_to_ids(["x"]) == [2]


def test_saved_and_loaded_words_are_the_same(tmp_path: Path) -> None:
    words = ["<S>", "</S>", "<UNK>", "a\u2028b", "\xa0", "é", "a\rb", " "]
    TargetVocabulary(words).save(tmp_path)

    assert TargetVocabulary.from_file(tmp_path / "target_vocab.txt").words == words
    assert TargetVocabulary.from_file(tmp_path).words == words


def test_missing_special_words_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"missing: </S>, <UNK>\. Add one line for each"):
        TargetVocabulary(["<S>", "a"])


def test_a_word_listed_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="each word of the vocabulary once, got 'a' again"):
        TargetVocabulary(["<S>", "</S>", "<UNK>", "a", "a"])


def test_files_may_be_as_windows_writes_them(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_bytes("\ufeff<S>\r\n</S>\r\n<UNK>\r\nnaïve\r\n".encode())
    assert TargetVocabulary.from_file(tmp_path / "v.txt").words[-1] == "naïve"


def test_empty_words_and_words_with_line_breaks_are_unknown(tmp_path: Path) -> None:
    vocabulary = build_vocabulary(count_words([["a", "\n", "b\r", "a", ""]]))
    vocabulary.save(tmp_path / "v.txt")
    assert TargetVocabulary.from_file(tmp_path / "v.txt").words == [*SPECIAL_WORDS, "a"]


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_bytes("naïve\n".encode("latin-1"))
    with pytest.raises(
        ValueError, match=r"Expected UTF-8 with one word per line in .*v\.txt, got:"
    ):
        TargetVocabulary.from_file(tmp_path / "v.txt")


def read_pieces_text(rng: object = None) -> Iterator[list[str]]:
    return iter([["lower", "low"], ["newer", "new", "lower"], ["new", "newer"]] * 3)


def test_pieces_are_all_listed_by_decreasing_frequency() -> None:
    vocabulary = build_pieces(read_pieces_text, max_size=16)

    assert vocabulary.pieces is not None
    assert set(vocabulary.pieces.get_vocab()) == set(vocabulary.words)
    assert len(vocabulary) == 16
    counts = count_words(vocabulary.read(read_pieces_text)(None))
    frequencies = [counts[piece] for piece in vocabulary.words[3:]]
    assert frequencies == sorted(frequencies, reverse=True)
    assert frequencies[-1] == 0  # a letter that only occurs in longer pieces


def test_pieces_of_a_text_are_always_the_same() -> None:
    first, second = (build_pieces(read_pieces_text, max_size=16) for _ in range(2))
    assert first.words == second.words


def test_a_word_with_a_space_is_split_like_any_other() -> None:
    vocabulary = build_pieces(lambda rng: iter([["10 000", "0"]] * 5), max_size=8)
    assert vocabulary.pieces is not None
    pieces = vocabulary.pieces.encode(["10 000"], is_pretokenized=True).tokens
    assert "".join(piece.removeprefix("##") for piece in pieces) == "10 000"
    assert all(piece.startswith("##") for piece in pieces[1:])


def test_pieces_are_saved_with_their_vocabulary(tmp_path: Path) -> None:
    vocabulary = build_pieces(read_pieces_text, max_size=16)
    vocabulary.save(tmp_path)

    loaded = TargetVocabulary.from_file(tmp_path)
    assert loaded.words == vocabulary.words
    assert [*loaded.read(read_pieces_text)(None)] == [*vocabulary.read(read_pieces_text)(None)]


def test_empty_lines_at_the_end_of_a_file_are_no_words(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("<S>\n</S>\n<UNK>\na\n\n\n")
    assert TargetVocabulary.from_file(tmp_path / "v.txt").words == ["<S>", "</S>", "<UNK>", "a"]


def test_a_word_with_a_line_break_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Expected words without line breaks, got 'a\\nb'"):
        TargetVocabulary([*SPECIAL_WORDS, "a\nb"]).save(tmp_path / "words.txt")
    assert not list(tmp_path.iterdir())

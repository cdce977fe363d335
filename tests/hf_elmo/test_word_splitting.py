"""Texts split into words."""

import pytest

from hf_elmo.word_splitting import check_pattern, split_text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It costs 1,000.50 dollars.", ["It", "costs", "1,000.50", "dollars", "."]),
        ("They don't.", ["They", "don", "'t", "."]),
        ("a_b e\u0301t", ["a_b", "e\u0301t"]),  # an accent of its own belongs to its letter
        ("\U0001f1eb\U0001f1f7!", ["\U0001f1eb\U0001f1f7", "!"]),  # a flag is two characters
        (" \n", []),
    ],
)
def test_a_text_is_split_into_numbers_words_and_single_signs(text: str, words: list[str]) -> None:
    assert split_text(text)[0] == words


def test_the_span_of_a_word_is_where_it_stands_in_the_text() -> None:
    words, spans = split_text("  The  bank.")
    assert spans == [(2, 5), (7, 11), (11, 12)]
    assert words == ["The", "bank", "."]


def test_empty_matches_of_a_pattern_are_no_words() -> None:
    assert split_text("a b", r"\S*") == (["a", "b"], [(0, 1), (2, 3)])


def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(ValueError, match=r"as word_pattern, got '\('"):
        check_pattern("(")

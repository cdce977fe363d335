"""Batches of rows: sentences truncated, padded and asked for their words."""

from typing import Any

import numpy as np
import pytest

from hf_elmo.tokenization_batches import ElmoEncoding, count_axes, join_rows, lay_out


@pytest.mark.parametrize(
    ("is_left", "words", "first"), [(False, ["a", "b"], 0), (True, ["b", "c"], 1)]
)
def test_a_truncated_sentence_knows_where_its_words_stood(
    is_left: bool, words: list[str], first: int
) -> None:
    sentence = ElmoEncoding(["a", "b", "c"], [(0, 1), (2, 3), (4, 5)]).truncate(2, is_left)
    assert (sentence.words, sentence.word_ids) == (words, [first, first + 1])
    assert sentence.offsets == [(2 * first, 2 * first + 1), (2 * first + 2, 2 * first + 3)]


def test_a_padded_sentence_has_rows_without_a_word() -> None:
    sentence = ElmoEncoding(["a", "bc"], None).pad(3, is_left=True)
    assert sentence.tokens == [None, "a", "bc"]
    assert sentence.word_to_tokens(1) == (2, 3)
    assert sentence.token_to_chars(0) is None
    assert sentence.token_to_chars(2) == (0, 2)


@pytest.mark.parametrize("spans", [None, [(0, 1), (2, 4), (5, 6)]])
def test_a_lookup_of_one_row_equals_the_list_of_all(spans: list[tuple[int, int]] | None) -> None:
    sentence = ElmoEncoding(["a", "bc", "d"], spans).truncate(2, is_left=True).pad(4, is_left=True)
    sentence.word_ids.clear()  # a list of the caller's own
    assert sentence.word_ids == [None, None, 1, 2]
    for row in (*range(4), *range(-4, 0)):
        word = sentence.word_ids[row]
        assert sentence.token_to_word(row) == word
        assert sentence.token_to_sequence(row) == sentence.sequence_ids[row]
        assert sentence.token_to_chars(row) == (None if word is None else sentence.offsets[row])
    for word in (1, 2):
        row = sentence.word_ids.index(word)
        assert sentence.word_to_tokens(word) == (row, row + 1)
        assert sentence.word_to_chars(word) == sentence.offsets[row]
    with pytest.raises(IndexError):
        sentence.token_to_word(4)
    for word in (0, 3):  # cut off; none
        assert sentence.word_to_tokens(word) is None
        with pytest.raises(ValueError, match="Expected a word that has a row"):
            sentence.word_to_chars(word)


@pytest.mark.parametrize(
    ("is_left", "rows"), [(False, [[1, 2, 0], [3, 0, 0]]), (True, [[0, 1, 2], [0, 0, 3]])]
)
def test_rows_are_laid_out_by_sentence(is_left: bool, rows: list[list[int]]) -> None:
    assert lay_out(np.array([1, 2, 3]), [2, 1], 3, is_left).tolist() == rows


def test_values_of_sentences_are_joined_under_a_row_of_padding() -> None:
    joined = join_rows("special_tokens_mask", [[0, 0], [], [0]], [2, 0, 1], num_cells=50)
    assert joined.tolist() == [1, 0, 0, 0]
    with pytest.raises(ValueError, match=r"input_ids of shape \(1, 50\) .* got \(1, 3\)"):
        join_rows("input_ids", [[[1, 2, 3]]], [1], num_cells=50)


@pytest.mark.parametrize(
    ("ids", "axes"), [(3, 0), ([1], 1), ([[], [1]], 2), (np.zeros((2, 3, 4)), 3), ([], 1)]
)
def test_axes_are_counted_in_lists_and_arrays(ids: Any, axes: int) -> None:
    assert count_axes(ids) == axes

"""Rows of ids: words spelled and read."""

from hf_elmo import ElmoConfig
from hf_elmo.character_ids import Spelling, spell_boundaries

MARKS = (259, 260, 261)


def test_a_word_is_spelled_and_read_in_bytes() -> None:
    spelling = Spelling(None, "<UNK>", 6, MARKS)
    table = spelling.spell(["é", "abcdef"])
    assert table.tolist() == [
        [0, 0, 0, 0, 0, 0],
        [259, 196, 170, 260, 261, 261],
        [259, 98, 99, 100, 101, 260],
    ]
    assert [spelling.read(row) for row in table[1:]] == ["é", "abcd"]


def test_a_word_is_spelled_and_read_in_entries_of_a_vocabulary() -> None:
    spelling = Spelling(["a", "<UNK>", "<bow>", "<eow>", "<pad>"], "<UNK>", 5, (3, 4, 5))
    table = spelling.spell(["ab", "\U0001f600"])
    assert table.tolist() == [[0, 0, 0, 0, 0], [3, 1, 2, 4, 5], [3, 2, 4, 5, 5]]
    assert [spelling.read(row) for row in table[1:]] == ["a\ufffd", "\ufffd"]


def test_a_boundary_is_one_id_between_the_marks() -> None:
    spelling = Spelling(None, "<UNK>", 5, MARKS)
    assert spelling.spell_boundary(257).tolist() == [259, 257, 260, 261, 261]


def test_boundaries_are_spelled_between_word_marks(tiny_config: ElmoConfig) -> None:
    ids, word_ids = spell_boundaries(tiny_config)
    assert ids is not None
    assert ids[:, :4].tolist() == [[259, 257, 260, 261], [259, 258, 260, 261]]
    assert word_ids is None

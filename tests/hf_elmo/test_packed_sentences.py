"""How sentences are laid out for the LSTMs."""

import torch

from hf_elmo.packed_sentences import lay_out, pack_words

MASK = torch.tensor([[1, 0, 0], [0, 0, 0], [0, 1, 1]]).bool()  # padded on either side, or empty


def test_steps_go_time_by_time_through_the_longest_sentences_first() -> None:
    order, batch_sizes, entries, rows, columns = pack_words(MASK)
    assert order.tolist() == [2, 0, 1]
    assert batch_sizes == [3, 3, 2, 1]
    assert entries.tolist() == [0, 0, 0, 3, 2, 1, 4, 1, 1]  # <S> is 0, </S> is 1, words from 2
    assert rows.tolist() == [2, 0, 1, 2, 0, 1, 2, 0, 2]
    assert columns.tolist() == [1, 0, 0, 2, 1, 1, 3, 2, 4]  # with a row for each boundary


def test_vectors_are_laid_out_in_their_places() -> None:
    vectors = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    result = lay_out(vectors, (2, 3), torch.tensor([1, 0]), torch.tensor([2, 1]))
    assert result.tolist() == [[[0, 0], [3, 4], [0, 0]], [[0, 0], [0, 0], [1, 2]]]

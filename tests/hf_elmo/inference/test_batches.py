"""Batches of sentences."""

from hypothesis import given
from hypothesis import strategies as st

from hf_elmo.inference.batches import MIN_ROWS, group_sentences, take_batch
from hf_elmo.inference.exact_windows import NUM_BOUNDARIES

lengths_of_sentences = st.lists(st.integers(0, 30), max_size=40)


@given(lengths_of_sentences, st.integers(1, 60))
def test_groups_keep_the_order_and_the_limit(lengths: list[int], look_ahead: int) -> None:
    sentences = [["word"] * length for length in lengths]
    groups = list(group_sentences(sentences, look_ahead))
    assert [words for group in groups for words in group] == sentences
    for group in groups:
        assert len(group) == 1 or sum(len(x) + NUM_BOUNDARIES for x in group) <= look_ahead


@given(lengths_of_sentences, st.integers(1, 400))
def test_a_batch_is_within_the_limit_or_of_the_fewest_rows(lengths: list[int], limit: int) -> None:
    lengths.sort(reverse=True)
    count = take_batch(lengths, limit)
    steps = sum(length + NUM_BOUNDARIES for length in lengths[:count])
    assert steps <= limit or count == min(MIN_ROWS, len(lengths))
    assert count == len(lengths) or steps + lengths[count] + NUM_BOUNDARIES > limit

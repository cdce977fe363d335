"""Batches of sentences."""

from hypothesis import given
from hypothesis import strategies as st

from hf_elmo.inference.batches import MIN_ROWS, batch_by_length, group_sentences
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
def test_batches_hold_every_sentence_and_keep_the_limit(lengths: list[int], limit: int) -> None:
    batches = list(batch_by_length(lengths, limit))
    places = [place for batch in batches for place in batch]
    assert sorted(places) == list(range(len(lengths)))
    assert [lengths[place] for place in places] == sorted(lengths, reverse=True)
    steps = [sum(lengths[place] + NUM_BOUNDARIES for place in batch) for batch in batches]
    for number, (batch, size) in enumerate(zip(batches, steps, strict=True)):
        assert size <= limit or len(batch) <= MIN_ROWS
        if number + 1 < len(batches):  # the next sentence did not fit
            following = lengths[batches[number + 1][0]] + NUM_BOUNDARIES
            assert len(batch) >= MIN_ROWS
            assert size + following > limit

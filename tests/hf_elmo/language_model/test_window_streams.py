import json
from collections.abc import Iterator
from itertools import islice
from random import Random

import numpy as np
import pytest
import torch

from hf_elmo import ElmoTokenizer
from hf_elmo.language_model.vocabulary import TargetVocabulary
from hf_elmo.language_model.window_streams import (
    SentenceStream,
    StreamWindow,
    WindowCollator,
    WindowStream,
)
from hf_elmo.text.text_reader import SentenceReader

VOCABULARY = TargetVocabulary(["<S>", "</S>", "<UNK>", "a", "b", "c", "d", "e", "f"])


def text_of(*sentences: str) -> SentenceReader:
    def read(rng: Random | None) -> Iterator[list[str]]:
        lines = list(sentences)
        if rng is not None:
            rng.shuffle(lines)
        return iter([line.split() for line in lines])

    return read


def make_stream(*sentences: str, num_passes: int | None = 1, **options: object) -> WindowStream:
    forward, backward = (
        SentenceStream(text_of(*sentences), num_passes=num_passes) for _ in range(2)
    )
    return WindowStream(forward, backward, VOCABULARY, **options)  # type: ignore[arg-type]


def spell(window: StreamWindow, direction: str) -> list[str]:
    """Write the rows of one direction as `inputs > targets`."""
    places, ids = getattr(window, direction), getattr(window, f"{direction}_targets")
    return [
        " ".join(window.words[place] for place in places[:, row])
        + " > "
        + " ".join(VOCABULARY.words[target] for target in ids[:, row])
        for row in range(places.shape[1])
    ]


SENTENCES = ("a b c", "d", "e f", "a b", "c d e")


def test_rows_take_the_next_sentence_of_one_stream_and_drop_the_end() -> None:
    windows = list(make_stream(*SENTENCES, num_rows=2, window=3))

    assert [spell(window, "forward") for window in windows] == [
        ["<S> a b > a b c", "<S> d <S> > d </S> e"],
        ["c <S> a > </S> a b", "e f <S> > f </S> c"],
    ]


def test_the_backward_stream_is_each_sentence_reversed() -> None:
    windows = list(make_stream(*SENTENCES, num_rows=2, window=3))

    assert [spell(window, "backward") for window in windows] == [
        ["</S> c b > c b a", "</S> d </S> > d <S> f"],
        ["a </S> b > <S> b a", "f e </S> > e <S> e"],
    ]


def test_rows_fed_a_word_at_a_time_take_turns() -> None:
    windows = list(make_stream(*SENTENCES, num_rows=2, window=2, feed=1))

    # The last window has one complete step.
    assert [spell(window, "forward") for window in windows] == [
        ["<S> a > a b", "<S> d > d </S>"],
        ["b c > c </S>", "<S> e > e f"],
        ["<S> a > a b", "f <S> > </S> c"],
        ["b > </S>", "c > d"],
    ]


def test_the_directions_may_read_in_different_orders() -> None:
    forward, backward = (SentenceStream(text_of(*order)) for order in ("ab", "ba"))
    stream = WindowStream(forward, backward, VOCABULARY, num_rows=1, window=4)

    window = next(stream)

    assert spell(window, "forward") == ["<S> a <S> b > a </S> b </S>"]
    assert spell(window, "backward") == ["</S> b </S> a > b <S> a <S>"]


def test_words_outside_the_vocabulary_keep_their_letters_in_the_input() -> None:
    (window,) = make_stream("a zebra", num_rows=1, window=3)

    assert spell(window, "forward") == ["<S> a zebra > a <UNK> </S>"]


def test_each_distinct_word_is_listed_once_after_the_boundaries() -> None:
    (window,) = make_stream("a a b a", "b a a", num_rows=1, window=9)

    assert window.words == ["<S>", "</S>", "a", "b"]


@pytest.mark.parametrize("num_processes", [2, 4])
def test_processes_share_the_windows_of_one(num_processes: int) -> None:
    options = {"num_rows": 4, "window": 3}
    sentences = [f"{first} {second} c" for first in "abcdef" for second in "abcdef"]
    whole = list(make_stream(*sentences, **options))
    size = 4 // num_processes

    shares = [
        list(make_stream(*sentences, rows=range(start, start + size), **options))
        for start in range(0, 4, size)
    ]

    for direction in ("forward", "backward"):
        for number, window in enumerate(whole):
            together = [row for share in shares for row in spell(share[number], direction)]
            assert together == spell(window, direction)


def test_a_stream_without_end_reads_the_text_again_in_another_order() -> None:
    stream = SentenceStream(text_of(*"abcdef"), seed=3)

    first, second = list(islice(stream, 6)), list(islice(stream, 6))

    assert sorted(first) == sorted(second) == [[letter] for letter in "abcdef"]
    assert first != second


def test_a_text_without_sentences_ends_at_once() -> None:
    assert list(SentenceStream(text_of())) == []


def test_a_training_pass_that_draws_no_sentence_is_an_error() -> None:
    with pytest.raises(ValueError, match="got none in 100 passes: the weights of --train are"):
        next(SentenceStream(text_of(), seed=3))
    passes = iter([iter([]), iter([]), iter([["a"]])])
    assert next(SentenceStream(lambda rng: next(passes), seed=3)) == ["a"]


def test_a_position_behind_the_end_of_a_text_is_told() -> None:
    with pytest.raises(ValueError, match="with at least 3 sentences, got 2"):
        SentenceStream(text_of("a", "b")).seek(0, 3)


def test_a_stream_goes_on_from_its_position_exactly() -> None:
    def make() -> WindowStream:
        forward, backward = (SentenceStream(text_of(*SENTENCES), seed=seed) for seed in (5, 6))
        return WindowStream(forward, backward, VOCABULARY, num_rows=2, window=3)

    stream = make()
    list(islice(stream, 4))  # into the second pass
    position = json.loads(json.dumps(stream.state_dict()))
    expected = list(islice(stream, 5))
    resumed = make()
    resumed.load_state_dict(position)

    for window, other in zip(expected, resumed, strict=False):
        assert window.words == other.words
        for array, other_array in zip(window[1:], other[1:], strict=True):
            np.testing.assert_array_equal(array, other_array)


LONG = " ".join(f"word{number}" for number in range(400))


def take_noisy(number: int, rows: range | None = None, **options: int) -> StreamWindow:
    stream = make_stream(
        *[LONG] * 4, num_rows=2, window=100, char_noise=0.1, rows=rows, num_passes=None, **options
    )
    return next(islice(stream, number, None))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_share_of_the_inputs_has_typing_errors(direction: str) -> None:
    window = take_noisy(0)
    clean = next(make_stream(*[LONG] * 4, num_rows=2, window=100))

    read, right = (
        [w.words[place] for place in getattr(w, direction).T.ravel()] for w in (window, clean)
    )
    targets = f"{direction}_targets"
    num_errors = sum(x != y for x, y in zip(read, right, strict=True))
    assert 8 < num_errors < 35  # of 200
    assert read.count("<S>") == right.count("<S>")
    np.testing.assert_array_equal(getattr(window, targets), getattr(clean, targets))


def test_typing_errors_differ_from_window_to_window_and_by_their_seed() -> None:
    words = [take_noisy(number, seed=seed).words for number, seed in ((0, 0), (4, 0), (0, 1))]

    errors = [{word for word in list_ if word not in LONG.split()} for list_ in words]
    assert len({frozenset(x) for x in errors}) == 3


def test_typing_errors_do_not_depend_on_the_number_of_processes() -> None:
    whole = take_noisy(1)
    for row in range(2):
        part = take_noisy(1, range(row, row + 1))
        assert [part.words[i] for i in part.forward[:, 0]] == [
            whole.words[i] for i in whole.forward[:, row]
        ]


def test_a_stream_with_typing_errors_goes_on_exactly() -> None:
    whole, part = (
        make_stream(*[LONG] * 4, num_rows=2, window=9, char_noise=0.5, num_passes=None)
        for _ in range(2)
    )
    windows = list(islice(whole, 6))
    list(islice(part, 3))
    other = make_stream(*[LONG] * 4, num_rows=2, window=9, char_noise=0.5, num_passes=None)
    other.load_state_dict(json.loads(json.dumps(part.state_dict())))

    assert [w.words for w in islice(other, 3)] == [w.words for w in windows[3:]]


def test_the_position_of_another_number_of_rows_is_an_error() -> None:
    position = make_stream(*SENTENCES, num_rows=2, window=3).state_dict()

    with pytest.raises(ValueError, match=r"position of 3 rows, got 2\. Resume with the same"):
        make_stream(*SENTENCES, num_rows=3, window=3).load_state_dict(position)


def test_the_collator_spells_each_word_in_its_place() -> None:
    (window,) = make_stream("long a longer", num_rows=1, window=4)
    tokenizer = ElmoTokenizer()

    batch = WindowCollator(tokenizer)(window)

    words = tokenizer([["long", "a", "longer"]], is_split_into_words=True, return_tensors="pt")
    places = batch["forward_inputs"].flatten()
    assert places[0] == 0  # <S>
    torch.testing.assert_close(batch["input_ids"][places[1:] - 2], words["input_ids"][0])
    torch.testing.assert_close(batch["backward_inputs"].flatten()[1:], places[1:].flip(0))
    assert batch["forward_targets"].flatten().tolist() == [2, 3, 2, 1]


def test_the_collator_puts_words_of_like_lengths_together() -> None:
    (window,) = make_stream("long a longer b", num_rows=1, window=5)

    batch = WindowCollator(ElmoTokenizer())(window)

    lengths = (batch["input_ids"] != ElmoTokenizer().char_padding_id).sum(dim=1).tolist()
    assert lengths == sorted(lengths)


def test_a_string_is_no_sentence() -> None:
    with pytest.raises(TypeError, match="Expected a list of words as sentence 0; got 'the cat'"):
        next(SentenceStream(lambda _: iter(["the cat"])))

import itertools
import random
from functools import partial
from pathlib import Path

import pytest
from sentence_files import write

from hf_elmo.text import shuffling
from hf_elmo.text.shuffling import interleave, shuffle
from hf_elmo.text.text_reader import read_files


def test_a_shuffled_pass_has_every_sentence_once_from_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shuffling, "OPEN_FILES", 8)
    names = [f"f{number:02}" for number in range(20)]  # more than are open at once
    files = write(tmp_path, **{name: [f"{name} {i}" for i in range(30)] for name in names})
    text = read_files(files)

    shuffled = list(text(random.Random(1)))

    assert sorted(shuffled) == sorted(text(None))
    assert len({name for name, _ in shuffled[:50]}) > shuffling.OPEN_FILES


def test_a_part_of_a_shuffled_pass_is_mixed_as_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shuffling, "BUFFER_SIZE", 1)
    files = write(tmp_path, large=["large"] * 9000, small=["small"] * 1000)
    sentences = itertools.islice(read_files(files)(random.Random(1)), 1000)
    assert 70 <= sum(words == ["small"] for words in sentences) <= 130


def test_the_shuffled_order_depends_on_the_seed_alone(tmp_path: Path) -> None:
    text = read_files(write(tmp_path, a=[str(i) for i in range(50)]))

    assert list(text(random.Random(1))) == list(text(random.Random(1)))
    assert list(text(random.Random(1))) != list(text(random.Random(2)))


def test_shuffling_holds_no_more_than_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffling, "BUFFER_SIZE", 10)
    lines = [str(i) for i in range(1000)]
    taken: list[str] = []

    def count() -> object:
        for line in lines:
            taken.append(line)
            yield line

    shuffled = shuffle(count(), random.Random(0))  # type: ignore[arg-type]
    first = [next(shuffled) for _ in range(5)]

    assert len(taken) == 15
    assert sorted([*first, *shuffled]) == sorted(lines)


def test_shuffled_sentences_leave_the_buffer_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffling, "BUFFER_SIZE", 10)
    first = list(itertools.islice(shuffle(range(1000), random.Random(0)), 100))
    assert first != sorted(first)


def test_the_files_that_are_read_first_depend_on_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffling, "OPEN_FILES", 1)
    readers = [partial(iter, [name]) for name in "abc"]
    orders = {"".join(interleave(readers, [1] * 3, random.Random(seed))) for seed in range(20)}
    assert len(orders) > 3


def test_a_file_that_is_opened_later_is_read_in_proportion_to_its_own_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shuffling, "OPEN_FILES", 2)
    rng = random.Random(0)
    monkeypatch.setattr(rng, "shuffle", lambda waiting: None)
    lengths = {"short": 1, "first": 1000, "later": 1000}
    readers = [partial(itertools.repeat, name, length) for name, length in lengths.items()]
    names = itertools.islice(interleave(readers, [1000, 1000, 10], rng), 800)
    assert sum(name == "later" for name in names) < 100


def test_files_of_unknown_size_are_read() -> None:
    readers = [partial(iter, [name]) for name in "ab"]
    assert sorted(interleave(readers, [0, 0], random.Random(0))) == ["a", "b"]

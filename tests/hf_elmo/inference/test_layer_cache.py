"""The cache of layers, in memory and on disk."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hf_elmo.inference.layer_cache import LayerCache

LAYERS, WIDTH = 3, 8
BYTES_A_WORD = LAYERS * WIDTH * 2


class Computer:
    """Make random layers, the same for the same words, and note what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, sentences: Sequence[Sequence[str]]) -> Iterator[Tensor]:
        for words in sentences:
            self.asked.append(list(words))
            generator = torch.Generator().manual_seed(sum(map(ord, "|".join(words))))
            yield torch.randn(LAYERS, len(words), WIDTH, generator=generator)


@pytest.fixture
def compute() -> Computer:
    return Computer()


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "cache" if request.param == "disk" else None


def test_each_distinct_sentence_is_computed_once(folder: Path | None, compute: Computer) -> None:
    cache = LayerCache(10_000, folder)
    for _ in range(2):
        list(cache.fetch([["a"], ["b", "c"], ["a"]], compute))
    assert compute.asked == [["a"], ["b", "c"]]
    assert len(cache) == 2
    assert cache.num_bytes == 3 * BYTES_A_WORD


def test_layers_come_back_rounded_to_16_bits(folder: Path | None, compute: Computer) -> None:
    cache = LayerCache(10_000, folder)
    (exact,) = compute([["b", "c"]])
    (first,) = cache.fetch([["b", "c"]], compute)
    (second,) = cache.fetch([["b", "c"]], compute)
    torch.testing.assert_close(first, exact, rtol=2**-11, atol=0)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_layers_come_in_the_order_of_the_sentences(compute: Computer) -> None:
    cache = LayerCache(10_000)
    list(cache.fetch([["b"], ["d"]], compute))
    sentences = [["a"], ["b"], ["c"], ["d"], ["a"]]
    for words, layers in zip(sentences, cache.fetch(sentences, compute), strict=True):
        (exact,) = compute([words])
        torch.testing.assert_close(layers, exact, rtol=0, atol=2e-3)


def test_full_cache_keeps_what_it_has_and_says_so(
    folder: Path | None, compute: Computer, caplog: pytest.LogCaptureFixture
) -> None:
    cache = LayerCache(2 * BYTES_A_WORD, folder)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert len(list(cache.fetch([["a"], ["b"], ["c"], ["c"]], compute))) == 4
    assert compute.asked == [["a"], ["b"], ["c"], ["c"], ["c"]]
    assert cache.num_bytes == 2 * BYTES_A_WORD
    (record,) = caplog.records
    assert "is full at 2 sentences" in record.message


def test_a_full_cache_stores_no_shorter_sentence_either(compute: Computer) -> None:
    cache = LayerCache(2 * BYTES_A_WORD)
    list(cache.fetch([["a"], ["b", "c"], ["d"]], compute))
    assert len(cache) == 1


def test_cache_of_no_bytes_only_computes(
    compute: Computer, caplog: pytest.LogCaptureFixture
) -> None:
    cache = LayerCache(0)
    assert len(list(cache.fetch([["a"], ["a"]], compute))) == 2
    assert len(cache) == 0
    assert not caplog.records  # no advice to enlarge it


def test_words_are_not_glued_together(compute: Computer) -> None:
    cache = LayerCache(10_000)
    list(cache.fetch([["ab"], ["a", "b"], ["a\0b"]], compute))
    assert len(cache) == 3


def test_no_file_is_left(tmp_path: Path, compute: Computer) -> None:
    cache = LayerCache(10_000, tmp_path / "cache")
    list(cache.fetch([["a"]], compute))
    assert list((tmp_path / "cache").iterdir()) == []


def test_cleared_cache_knows_nothing(folder: Path | None, compute: Computer) -> None:
    cache = LayerCache(10_000, folder)
    list(cache.fetch([["a"]], compute))
    cache.clear()
    list(cache.fetch([["a"]], compute))
    assert compute.asked == [["a"], ["a"]]


def test_forked_process_keeps_nothing_in_the_cells_it_shares(
    folder: Path | None, compute: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = LayerCache(10_000, folder)
    list(cache.fetch([["a"]], compute))
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert len(list(cache.fetch([["a"], ["b"]], compute))) == 2
    assert len(cache) == 1

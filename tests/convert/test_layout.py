"""The common layout reads tensors by rows, and takes only mixes that fit the biLM."""

import numpy as np
import pytest

from convert import ConversionError, layout
from convert.layout import Checkpoint, LazyTensor, Mix, add_mixes, configured_mix
from hf_elmo import ElmoConfig

TABLE = np.arange(15, dtype=np.float32).reshape(5, 3)


@pytest.fixture
def tensor() -> LazyTensor:
    return LazyTensor("table", TABLE.shape, lambda start, stop: TABLE[start:stop])


@pytest.fixture
def checkpoint(tiny_config: ElmoConfig) -> Checkpoint:
    return Checkpoint(config=tiny_config, tensors={}, files=())


@pytest.mark.parametrize(("block_size", "rows"), [(1, [1] * 5), (6, [2, 2, 1]), (100, [5])])
def test_blocks_hold_at_most_so_many_numbers(
    block_size: int, rows: list[int], tensor: LazyTensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "BLOCK_SIZE", block_size)
    blocks = list(tensor.blocks())
    assert [len(block) for block in blocks] == rows
    np.testing.assert_array_equal(np.concatenate(blocks), tensor.read())


def test_a_single_mix_is_configured(checkpoint: Checkpoint) -> None:
    mix = Mix((0.5, -1.0, 2.0), 1.5, layer_norm=True)
    assert configured_mix(add_mixes(checkpoint, {"tagger": mix}).config) == mix
    assert configured_mix(checkpoint.config) == Mix((0.0, 0.0, 0.0), 1.0)


def test_several_mixes_are_kept_and_none_is_configured(checkpoint: Checkpoint) -> None:
    mixes = {"input": Mix((1.0, 2.0, 3.0), 4.0), "output": Mix((5.0, 6.0, 7.0), 8.0)}
    both = add_mixes(checkpoint, mixes)
    assert both.mixes == mixes
    assert both.config.mix_weights is None


@pytest.mark.parametrize(
    ("mix", "error"),
    [
        (Mix((1.0, 2.0), 1.0), "tagger: expected weights for 3 layers, got 2"),
        (Mix((1.0, 2.0, float("nan")), 1.0), "tagger: expected finite values"),
        (Mix((1.0, 2.0, 3.0), float("inf")), "tagger: expected finite values"),
    ],
)
def test_mixes_that_do_not_fit_are_refused(mix: Mix, error: str, checkpoint: Checkpoint) -> None:
    with pytest.raises(ConversionError, match=error):
        add_mixes(checkpoint, {"tagger": mix})

"""Shares of a corpus."""

from pathlib import Path

import pytest

from hf_elmo.corpus.shards import Shard


def test_a_shard_takes_its_share() -> None:
    assert Shard.parse("2/3") == (2, 3)
    assert list(Shard(2, 3).take(range(8))) == [1, 4, 7]
    assert list(Shard(1, 1).take("ab")) == ["a", "b"]


def test_a_shard_has_an_output_of_its_own() -> None:
    path = Path("folder/vectors.h5")
    assert Shard(2, 3).name_output(path) == Path("folder/vectors-00002-of-00003.h5")
    assert Shard(1, 1).name_output(path) == path


def test_a_shard_knows_the_outputs_of_all() -> None:
    outputs = [Path(f"folder/v-{number:05d}-of-00002.h5") for number in (1, 2)]
    assert Shard(2, 2).list_outputs(outputs[1]) == outputs
    assert Shard(2, 2).list_outputs(Path("v.h5")) == [Path("v.h5")]


@pytest.mark.parametrize("shard", ["0/3", "4/3", "x", "1/0", "1", "-1/3", "1/3/5"])
def test_a_shard_that_cannot_be_is_refused(shard: str) -> None:
    with pytest.raises(ValueError, match=rf"Expected a shard such as 1/3, .* got '{shard}'"):
        Shard.parse(shard)

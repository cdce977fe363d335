"""Settings: which shards and columns there can be."""

import pytest

from hf_elmo.corpus.settings import Settings


@pytest.mark.parametrize("shard", ["0/3", "4/3", "x", "1/0", "1", "-1/3", "1/3/5"])
def test_a_shard_that_cannot_be_is_refused(shard: str) -> None:
    with pytest.raises(ValueError, match=rf"Expected a shard such as 1/3, .* got '{shard}'"):
        Settings(shard=shard)


def test_ids_do_not_take_the_column_of_the_vectors() -> None:
    with pytest.raises(ValueError, match="Expected another id column than 'vectors'"):
        Settings(id_column="vectors")


def test_a_shard_knows_its_number() -> None:
    settings = Settings(shard="2/3")
    assert (settings.shard_number, settings.num_shards) == (2, 3)

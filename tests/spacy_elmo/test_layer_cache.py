"""The cache of layers as a configuration makes it."""

from pathlib import Path

from spacy.util import registry

from hf_elmo.inference.layer_cache import LayerCache
from spacy_elmo.layer_cache import make_layer_cache


def test_a_configuration_makes_the_cache(tmp_path: Path) -> None:
    make = registry.misc.get("spacy_elmo.LayerCache.v1")
    cache = make(10_000, str(tmp_path / "cache"))
    assert isinstance(cache, LayerCache)
    assert (cache.max_bytes, cache.folder) == (10_000, tmp_path / "cache")


def test_its_bound_is_that_of_the_cache() -> None:
    assert make_layer_cache().max_bytes == LayerCache().max_bytes

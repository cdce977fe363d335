"""The cache of layers as spaCy's configuration names it."""

from pathlib import Path

from spacy.util import registry

from hf_elmo.corpus.layer_cache import DEFAULT_BYTES, LayerCache

__all__ = ["LayerCache", "make_layer_cache"]


@registry.misc("spacy_elmo.LayerCache.v1")
def make_layer_cache(max_bytes: int = DEFAULT_BYTES, folder: str | None = None) -> LayerCache:
    """Make a cache for `[initialize.components.elmo.cache]`; `LayerCache` describes it.

    Args:
        max_bytes: Bound of memory or disk.
        folder: A folder on a disk, for more than fits into memory.
    """
    return LayerCache(max_bytes, None if folder is None else Path(folder))

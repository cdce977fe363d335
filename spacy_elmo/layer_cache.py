"""The cache of layers as spaCy's configuration names it."""

from pathlib import Path
from typing import TYPE_CHECKING

from spacy.util import registry

if TYPE_CHECKING:  # a pipeline without `elmo` imports this module, but shall not wait for torch
    from hf_elmo.inference.layer_cache import LayerCache

DEFAULT_BYTES = 2**30  # as hf_elmo.corpus has it


@registry.misc("spacy_elmo.LayerCache.v1")
def make_layer_cache(max_bytes: int = DEFAULT_BYTES, folder: str | None = None) -> "LayerCache":
    """Make a cache for `[initialize.components.elmo.cache]`; `LayerCache` describes it.

    Args:
        max_bytes: Bound of memory or disk.
        folder: A folder on a disk, for more than fits into memory.
    """
    from hf_elmo.inference.layer_cache import LayerCache

    return LayerCache(max_bytes, None if folder is None else Path(folder))

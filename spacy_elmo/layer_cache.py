"""`spacy_elmo.LayerCache.v1`: cache of layers for training."""

from pathlib import Path
from typing import TYPE_CHECKING

from spacy.util import registry

if TYPE_CHECKING:  # spaCy imports this for every pipeline; torch would slow it down
    from hf_elmo.inference.layer_cache import LayerCache

DEFAULT_BYTES = 2**30  # also in hf_elmo.inference.layer_cache


@registry.misc("spacy_elmo.LayerCache.v1")
def make_layer_cache(max_bytes: int = DEFAULT_BYTES, folder: str | None = None) -> "LayerCache":
    """Make a `LayerCache` for `[initialize.components.elmo.cache]`.

    Args:
        max_bytes: Limit of memory or disk space.
        folder: Folder for the layers; None = keep them in memory.
    """
    from hf_elmo.inference.layer_cache import LayerCache

    return LayerCache(max_bytes, None if folder is None else Path(folder))

"""Cache for the layers of training sentences, in float16."""

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

logger = logging.getLogger(__name__)

DEFAULT_BYTES = 2**30

Words = Sequence[str]


class LayerCache:
    """Cache the layers of sentences in float16, whose relative error is at most 5e-4.

    Entries are never evicted, because with shuffled epochs all are equally likely to be reused.
    Threads can share the cache. A forked process reads entries from before the fork, and adds none:
    processes share the file, but not the index.

    Args:
        max_bytes: Limit of the stored layers in bytes; memory is allocated on use. 0 = store
            nothing.
        folder: Folder for an unnamed file with the layers; None = keep them in memory.

    Attributes:
        is_full: Whether a sentence did not fit. From then on, nothing is stored, so that the
            content does not depend on the order of training.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES, folder: Path | None = None) -> None:
        self.max_bytes, self.folder = max_bytes, folder
        self._lock, self._process = threading.Lock(), os.getpid()
        self.clear()

    def clear(self) -> None:
        """Delete all entries."""
        size = self.max_bytes // 2
        self._values: npt.NDArray[np.float16]
        if self.folder is None or size == 0:
            self._values = np.empty(size, np.float16)
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self.folder) as file:  # the mapping keeps the file
                self._values = np.memmap(file, np.float16, "w+", shape=size)
        self._places: dict[bytes, tuple[int, tuple[int, ...]]] = {}
        self._num_used = 0
        self.is_full = size == 0

    @property
    def num_bytes(self) -> int:
        """Size of the stored layers in bytes."""
        return 2 * self._num_used

    def __len__(self) -> int:
        return len(self._places)

    def fetch(
        self, sentences: Sequence[Words], compute: Callable[[list[Words]], Iterator[Tensor]]
    ) -> Iterator[Tensor]:
        """Return the layers of sentences; compute missing ones.

        Args:
            sentences: Words of each sentence.
            compute: Computes the layers of several sentences, `(layers, words, width)` each.

        Returns:
            Layers in float32 on the CPU, one tensor per sentence, in order. New layers are rounded
            like cached ones, so that a run does not depend on the content of the cache.
        """
        keys = [_make_key(words) for words in sentences]
        pairs = zip(keys, sentences, strict=True)
        missing = {key: words for key, words in pairs if key not in self._places}
        computed = iter(compute(list(missing.values())) if missing else ())
        fresh: dict[bytes, npt.NDArray[np.float16]] = {}
        for key in keys:
            if key in missing and key not in fresh:  # `computed` has the same order
                fresh[key] = next(computed).detach().half().cpu().numpy()
                self._keep(key, fresh[key])
            layers = fresh[key] if key in fresh else self._get(key)
            yield torch.from_numpy(layers.astype(np.float32))

    def _keep(self, key: bytes, layers: npt.NDArray[np.float16]) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if key in self._places or self.is_full:
                return
            stop = self._num_used + layers.size
            if stop <= len(self._values):
                self._values[self._num_used : stop] = layers.ravel()
                self._places[key] = (self._num_used, layers.shape)
                self._num_used = stop
            else:
                self.is_full = True
                logger.warning(
                    "The cache of ELMo layers is full at %d sentences. Others are recomputed in "
                    "each epoch. To enlarge it, set --cache-bytes (train) or max_bytes (spaCy).",
                    len(self),
                )

    def _get(self, key: bytes) -> npt.NDArray[np.float16]:
        start, shape = self._places[key]
        return self._values[start : start + int(np.prod(shape))].reshape(shape)


def _make_key(words: Words) -> bytes:
    text = "".join(f"{len(word)} {word}" for word in words)  # unique for each sentence
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

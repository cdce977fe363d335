"""Layers of sentences that training asks for again and again, at two bytes a number."""

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
LARGEST = 2**15 - 1  # of 16-bit integers
SCALE_CELLS = 2  # a row's scale is a float32 at its end: two cells

Words = Sequence[str]


class LayerCache:
    """Keep the layers of sentences, each number as a 16-bit integer.

    A row (one layer of one word) is scaled by its largest number, so that the error is at most
    1.6e-5 of that: at the same size, 16 times finer than float16. What is full stays as it is,
    since under the shuffles of training epochs nothing is better to have than anything else.
    Threads may share it; a forked process reads what was kept before, and keeps nothing new.

    Args:
        max_bytes: Bound of the stored rows; nothing is taken before it is used.
        folder: Where a nameless file holds the rows; None = memory.

    Raises:
        ValueError: If the bound is negative.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES, folder: Path | None = None) -> None:
        if max_bytes < 0:
            raise ValueError(f"Expected max_bytes of at least 0, got {max_bytes}.")
        self.max_bytes = max_bytes
        self.folder = folder
        self._lock = threading.Lock()
        self._process = os.getpid()
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        num_cells = self.max_bytes // 2
        self._cells: npt.NDArray[np.int16]
        if self.folder is None or num_cells == 0:
            self._cells = np.empty(num_cells, dtype=np.int16)
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self.folder) as file:  # it lives as long as it is mapped
                self._cells = np.memmap(file, dtype=np.int16, mode="w+", shape=num_cells)
        self._positions: dict[bytes, tuple[int, tuple[int, int, int]]] = {}
        self._num_used = 0
        self._is_full = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows that are kept."""
        return 2 * self._num_used

    def __len__(self) -> int:
        return len(self._positions)

    def fetch(
        self, sentences: Sequence[Words], compute: Callable[[list[Words]], Iterator[Tensor]]
    ) -> Iterator[Tensor]:
        """Return the layers of sentences, computing those that are not kept.

        Args:
            sentences: Words of each sentence.
            compute: Computes the layers of several sentences, `(layers, words, width)` each.

        Returns:
            Layers on the CPU, one a sentence in their order; rounded, whether they were kept or
            not, so that a run does not depend on it.
        """
        keys = [_make_key(words) for words in sentences]
        missing = {
            key: words
            for key, words in zip(keys, sentences, strict=True)
            if key not in self._positions
        }
        computed = iter(compute(list(missing.values())) if missing else ())
        fresh = {}
        for key in keys:
            if key in missing and key not in fresh:  # computed in this very order
                fresh[key] = _encode_rows(next(computed))
                self._keep(key, fresh[key])
            yield _decode_rows(fresh[key] if key in fresh else self._get(key))

    def _keep(self, key: bytes, rows: npt.NDArray[np.int16]) -> None:
        if os.getpid() != self._process:  # the cells in a file are shared, what is used is not
            return
        with self._lock:
            if key not in self._positions:
                self._keep_new(key, rows)

    def _keep_new(self, key: bytes, rows: npt.NDArray[np.int16]) -> None:
        if self._num_used + rows.size > len(self._cells):
            if not self._is_full:
                logger.warning(
                    "The cache of ELMo layers is full at %d sentences; others are computed anew "
                    "in each epoch. Its max_bytes sets its size.",
                    len(self),
                )
            self._is_full = True
            return
        self._cells[self._num_used : self._num_used + rows.size] = rows.ravel()
        self._positions[key] = (self._num_used, rows.shape)
        self._num_used += rows.size

    def _get(self, key: bytes) -> npt.NDArray[np.int16]:
        start, shape = self._positions[key]
        return self._cells[start : start + np.prod(shape)].reshape(shape)


def _make_key(words: Words) -> bytes:
    text = "".join(f"{len(word)} {word}" for word in words)  # no two sentences have the same
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _encode_rows(layers: Tensor) -> npt.NDArray[np.int16]:
    """Round layers; shape `(layers, words, width)` to `(layers, words, width + SCALE_CELLS)`."""
    values = layers.detach().float().cpu().numpy()
    scales = np.abs(values).max(axis=-1, keepdims=True, initial=0) / LARGEST
    rounded = np.rint(values / np.where(scales > 0, scales, 1)).astype(np.int16)
    return np.concatenate([rounded, scales.astype(np.float32).view(np.int16)], axis=-1)


def _decode_rows(rows: npt.NDArray[np.int16]) -> Tensor:
    scales = np.ascontiguousarray(rows[..., -SCALE_CELLS:]).view(np.float32)
    return torch.from_numpy(rows[..., :-SCALE_CELLS] * scales)

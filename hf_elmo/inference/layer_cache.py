"""Cache for the layers of training sentences, with two bytes per value."""

import errno
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO
from weakref import finalize

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

logger = logging.getLogger(__name__)

DEFAULT_BYTES = 2**30
LARGEST = 2**15 - 1  # of the 16-bit integers
SCALE_CELLS = 2  # each row ends with its scale, a float32: two cells

# Errors of `posix_fallocate` on file systems that cannot reserve space.
UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)

Words = Sequence[str]


class LayerCache:
    """Cache the layers of sentences; store each value as a 16-bit integer.

    A row (one layer of one word) is scaled by its largest absolute value. The error is at most
    1.6e-5 of this value; float16 uses the same space with 16 times the error. Entries are never
    evicted, because with shuffled epochs all are equally likely to be reused. Threads can share the
    cache. A forked process reads entries from before the fork, and adds no entries.

    Args:
        max_bytes: Limit of the stored rows in bytes; memory is allocated on use. 0 = store nothing.
        folder: Folder for an unnamed file with the rows; None = keep the rows in memory.

    Attributes:
        is_full: Whether a sentence did not fit. From then on, nothing is stored, so that the
            content does not depend on the order of training.

    Raises:
        ValueError: If the limit is negative.
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
        """Delete all entries."""
        num_cells = self.max_bytes // 2
        self._cells: npt.NDArray[np.int16]
        self._file: IO[bytes] | None = None
        if self.folder is None or num_cells == 0:
            try:
                self._cells = np.empty(num_cells, dtype=np.int16)
            except (MemoryError, ValueError) as error:  # ValueError: beyond all addresses
                raise ValueError(
                    f"Expected a cache that fits in the memory, got {self.max_bytes:,} bytes. Give "
                    "a smaller number: --cache-bytes of train, max_bytes in spaCy."
                ) from error
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = TemporaryFile(dir=self.folder)  # noqa: SIM115 (closed with the cells)
            self._cells = np.memmap(self._file, dtype=np.int16, mode="w+", shape=num_cells)
            finalize(self._cells, self._file.close)
        self._positions: dict[bytes, tuple[int, tuple[int, int, int]]] = {}
        self._num_used = 0
        self.is_full = self.max_bytes == 0

    @property
    def num_bytes(self) -> int:
        """Size of the stored rows in bytes."""
        return 2 * self._num_used

    def __len__(self) -> int:
        return len(self._positions)

    def fetch(
        self, sentences: Sequence[Words], compute: Callable[[list[Words]], Iterator[Tensor]]
    ) -> Iterator[Tensor]:
        """Return the layers of sentences; compute missing ones.

        Args:
            sentences: Words of each sentence.
            compute: Computes the layers of several sentences, `(layers, words, width)` each.

        Returns:
            Layers on the CPU, one tensor per sentence, in order. New layers are rounded like
            cached ones, so that a run does not depend on the content of the cache.
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
            if key in missing and key not in fresh:  # `computed` has the same order
                fresh[key] = _encode_rows(next(computed))
                self._keep(key, fresh[key])
            yield _decode_rows(fresh[key] if key in fresh else self._get(key))

    def _keep(self, key: bytes, rows: npt.NDArray[np.int16]) -> None:
        if os.getpid() != self._process:  # processes share the file, but not the index
            return
        with self._lock:
            if key in self._positions or self.is_full:
                return
            stop = self._num_used + rows.size
            if stop <= len(self._cells) and self._reserve(stop):
                self._cells[self._num_used : stop] = rows.ravel()
                self._positions[key] = (self._num_used, rows.shape)
                self._num_used = stop
            else:
                self.is_full = True
                logger.warning(
                    "The cache of ELMo layers is full at %d sentences. Others are recomputed in "
                    "each epoch. To enlarge it, set --cache-bytes (train) or max_bytes (spaCy).",
                    len(self),
                )

    def _reserve(self, stop: int) -> bool:
        """Reserve disk space for the cells up to `stop`; return whether there is room.

        A write to a mapped file on a full disk would end the process.
        """
        if self._file is None or not hasattr(os, "posix_fallocate"):
            return True
        try:
            os.posix_fallocate(self._file.fileno(), 2 * self._num_used, 2 * (stop - self._num_used))
        except OSError as error:
            if error.errno in UNSUPPORTED:
                return True
            logger.warning("The folder of the cache, %s, has no room: %s.", self.folder, error)
            return False
        return True

    def _get(self, key: bytes) -> npt.NDArray[np.int16]:
        start, shape = self._positions[key]
        return self._cells[start : start + np.prod(shape)].reshape(shape)


def _make_key(words: Words) -> bytes:
    text = "".join(f"{len(word)} {word}" for word in words)  # unique for each sentence
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _encode_rows(layers: Tensor) -> npt.NDArray[np.int16]:
    """Round layers to integers with scales, shape `(layers, words, width + SCALE_CELLS)`."""
    values = layers.detach().float().cpu().numpy()
    scales = np.abs(values).max(axis=-1, keepdims=True, initial=0) / LARGEST
    rounded = np.rint(values / np.where(scales > 0, scales, 1)).astype(np.int16)
    return np.concatenate([rounded, scales.astype(np.float32).view(np.int16)], axis=-1)


def _decode_rows(rows: npt.NDArray[np.int16]) -> Tensor:
    scales = np.ascontiguousarray(rows[..., -SCALE_CELLS:]).view(np.float32)
    return torch.from_numpy(rows[..., :-SCALE_CELLS] * scales)

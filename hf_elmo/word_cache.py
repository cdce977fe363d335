"""Encode distinct words once, and cache their vectors from call to call."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .array_operations import take
from .configuration_elmo import ElmoConfig

WORDS_PER_CHUNK = 128  # words encoded at a time: bounds memory
MAX_BYTES = 64 * 2**20  # about 28,000 words of the original model
ENTRY_BYTES = 250  # per entry, without key and vector: bytes object, slot number, node in the dict

# Character ids `(words, characters)` and rows of the lexicon `(words,)`; None if not read.
WordIds = tuple[Tensor | None, Tensor | None]

# Encodes words, given the two tensors of ids; returns `(words, projection_size)`.
Encoder = Callable[[Tensor | None, Tensor | None], Tensor]


def encode_distinct(
    encoder: Encoder,
    config: ElmoConfig,
    cache: "WordCache | None",
    state: object,
    input_ids: Tensor | None,
    word_input_ids: Tensor | None,
) -> Tensor:
    """Return the vectors of words; encode only words that are not cached, each of them once.

    Args:
        encoder: Computes the vectors of words.
        config: Configuration of the biLM; ids must be below its vocabulary sizes.
        cache: Stores the vectors; None = cache nothing.
        state: Fingerprint of the encoder's weights; the cache is valid for this state only.
        input_ids: Character ids, shape `(words, characters)`; None = the biLM reads none.
        word_input_ids: Rows of the lexicon, shape `(words,)`; None = the biLM has no lexicon.

    Returns:
        Word vectors, shape `(words, width)`, on the weights' device.

    Raises:
        TypeError: If ids are not integers.
        ValueError: If an id is not in its vocabulary.
    """
    columns = _read_ids("word_input_ids", word_input_ids, config.word_vocab_size)
    columns += _read_ids("input_ids", input_ids, config.char_vocab_size)
    rows = np.concatenate(columns, axis=1)
    if not len(rows):
        return encoder(input_ids, word_input_ids)
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0].tolist()
    numbers: dict[bytes, int] = {}
    places = torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys])

    def encode(keys: list[bytes]) -> Tensor:
        ids = torch.frombuffer(bytearray().join(keys), dtype=torch.int32).view(len(keys), -1)
        return encoder(
            None if input_ids is None else ids[:, -input_ids.shape[1] :],
            None if word_input_ids is None else ids[:, 0],
        )

    distinct = list(numbers)
    vectors = encode(distinct) if cache is None else cache.fetch(distinct, state, encode)
    return take(vectors, places)


def _read_ids(name: str, ids: Tensor | None, size: int) -> list[npt.NDArray[np.int32]]:
    """Check ids on the CPU; return a list of one array `(words, columns)`, or [] without ids."""
    if ids is None:
        return []
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"Expected {name} of integers, got {ids.dtype}.")
    values = ids.cpu().numpy()
    if len(values) and not 0 <= values.min() <= values.max() < size:
        raise ValueError(
            f"Expected {name} from 0 to {size - 1}, got {values.min()} to {values.max()}. Call the "
            "model's own tokenizer, loaded by the same name."
        )
    return [values.astype(np.int32).reshape(len(values), -1 if len(values) else 1)]


def encode_in_chunks(
    encode: Encoder, config: ElmoConfig, input_ids: Tensor | None, word_input_ids: Tensor | None
) -> Tensor:
    """Encode words of similar length together, a bounded number at a time.

    Most padding is cut off without changing the result: the character CNN takes a maximum over
    windows, and all windows that contain only padding give the same value.

    Args:
        encode: Computes the vectors of a chunk.
        config: Configuration of the biLM; provides the filters and the padding character id.
        input_ids: As for `encode_distinct`.
        word_input_ids: As for `encode_distinct`.

    Returns:
        Word vectors in the order of the input, shape `(words, projection_size)`.
    """
    if input_ids is not None:
        is_used = input_ids != config.char_padding_id
        lengths = (torch.arange(1, input_ids.shape[1] + 1) * is_used.cpu()).amax(dim=1)
    elif word_input_ids is not None:
        lengths = torch.zeros_like(word_input_ids)
    widest = max((width for width, _ in config.char_filters or []), default=0)
    order = lengths.argsort(stable=True)
    chunks = []
    for rows in order.split(WORDS_PER_CHUNK):
        stop = int(lengths[rows[-1]]) + widest if len(rows) else None
        ids = None if input_ids is None else input_ids[rows][:, :stop]
        chunks.append(encode(ids, None if word_input_ids is None else word_input_ids[rows]))
    vectors = torch.cat(chunks)
    return vectors[order.argsort().to(vectors.device)]


class WordCache:
    """Cache of word vectors; when it is full, it drops the least recently used vectors.

    A vector depends on a word, on weights and on settings. When the fingerprint of weights and
    settings changes, the cache drops all vectors. Threads can share a cache. Copies and forked
    processes start with an empty cache.

    Args:
        max_bytes: Limit of the size of all entries; 0 = cache nothing.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # rows of the table, oldest use first
        self._forget(None)

    def _forget(self, weights: object) -> None:
        self._weights = weights
        self._slots.clear()
        self._table: Tensor | None = None

    def __reduce__(self) -> tuple[type["WordCache"], tuple[int]]:
        return WordCache, (self.max_bytes,)

    def __len__(self) -> int:
        return len(self._slots)

    def clear(self) -> None:
        """Drop all vectors."""
        with self._lock:
            self._forget(None)

    def fetch(
        self, keys: Sequence[bytes], weights: object, compute: Callable[[list[bytes]], Tensor]
    ) -> Tensor:
        """Look words up; compute and store the missing ones.

        Args:
            keys: Ids of distinct words as bytes, all of one length.
            weights: Fingerprint of the weights.
            compute: Computes the vectors of words, shape `(words, width)`.

        Returns:
            Vectors, shape `(words, width)`.
        """
        if os.getpid() != self._process:
            self._start()  # at the fork, a thread of the parent may have held the lock
        with self._lock:
            if weights != self._weights:
                self._forget(weights)
            slots = [self._slots.get(key, -1) for key in keys]
            for key, slot in zip(keys, slots, strict=True):
                if slot >= 0:
                    self._slots.move_to_end(key)
            rows = torch.tensor([slot for slot in slots if slot >= 0], dtype=torch.long)
            table = self._table
            known = None if table is None else take(table, rows)
        missing = [key for key, slot in zip(keys, slots, strict=True) if slot < 0]
        if known is not None and not missing:
            return known
        computed = compute(missing)
        with self._lock:
            if weights == self._weights:
                self._keep(missing, computed)
        if known is None:
            return computed
        is_known = torch.tensor(slots, device=computed.device) >= 0
        vectors = torch.empty_like(computed[:1].expand(len(keys), -1))
        vectors[is_known] = known
        vectors[~is_known] = computed
        return vectors

    def _keep(self, keys: list[bytes], vectors: Tensor) -> None:
        if self._table is None:
            entry_bytes = ENTRY_BYTES + len(keys[0]) + vectors[0].nbytes
            with torch.inference_mode(False):  # else autograd could not use the table
                self._table = vectors.new_empty(self.max_bytes // entry_bytes, vectors.shape[1])
        capacity = len(self._table)
        slots = {}
        for number in range(max(len(keys) - capacity, 0), len(keys)):
            if keys[number] not in self._slots:  # another thread may have stored it
                is_full = len(self._slots) == capacity
                slot = self._slots.popitem(last=False)[1] if is_full else len(self._slots)
                self._slots[keys[number]] = slot
                slots[number] = slot
        self._table[list(slots.values())] = vectors[list(slots)]

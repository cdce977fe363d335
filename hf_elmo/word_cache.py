"""Distinct words: each is encoded once, and its vector kept from call to call within a bound."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

MAX_BYTES = 64 * 2**20  # about 28,000 words of the original model
ENTRY_BYTES = 250  # of a key's bytes object, its slot's number and its node in an OrderedDict


def encode_distinct(
    encoder: nn.Module,
    cache: "WordCache",
    input_ids: Tensor | None,
    word_input_ids: Tensor | None,
) -> Tensor:
    """Encode words, equal ones once; where no gradient can be wanted, known ones not at all.

    Args:
        encoder: Gives the vectors of words, from the two tensors of ids.
        cache: Keeps them.
        input_ids: Character ids, shape `(words, characters)`, or None without characters.
        word_input_ids: Rows of the lexicon, shape `(words,)`, or None without a lexicon.

    Returns:
        Word vectors, shape `(words, width)`, on the weights' device.
    """
    columns = [word_input_ids[:, None]] if word_input_ids is not None else []
    columns += [input_ids] if input_ids is not None else []
    rows = torch.cat(columns, dim=1).to("cpu", torch.int32).contiguous().numpy()
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

    parameters = list(encoder.parameters())
    is_frozen = not any(parameter.requires_grad for parameter in parameters)
    if (torch.is_grad_enabled() or encoder.training) and not is_frozen:
        vectors = encode(list(numbers))
    else:
        vectors = cache.fetch(list(numbers), _mark_weights(parameters), encode)
    return vectors[places.to(vectors.device)]


def _mark_weights(parameters: Sequence[nn.Parameter]) -> Hashable:
    """Return what tells the state of the weights, and the dtype of what is computed of them."""
    versions = tuple(
        (parameter.data_ptr(), -1 if parameter.is_inference() else parameter._version)
        for parameter in parameters
    )
    device_type = parameters[0].device.type
    autocast = torch.is_autocast_enabled(device_type) and torch.get_autocast_dtype(device_type)
    return versions, autocast


class WordCache:
    """Keep the vectors of words; forget those used longest ago when there is no room.

    A vector depends on a word and on weights alone: `fetch` is given something that tells the
    weights' state, and forgets everything when that has changed. What it cannot see is a weight
    changed through `.data` in place: call `clear` then.

    Threads may share it. A forked process starts with an empty one, as does a copy or what is
    unpickled.

    Args:
        max_bytes: Bound of what the entries take; 0 = keep nothing.

    Attributes:
        hits: Distinct words that were here when a call asked for them.
        misses: Distinct words that were not.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.hits = self.misses = 0
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # rows of the table, oldest use first
        self._forget(None)

    def _forget(self, weights: Hashable) -> None:
        self._weights = weights
        self._slots.clear()
        self._table: Tensor | None = None

    def __reduce__(self) -> tuple[type["WordCache"], tuple[int]]:
        return WordCache, (self.max_bytes,)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def hit_rate(self) -> float:
        """Share of the distinct words of all calls that were here."""
        return self.hits / max(self.hits + self.misses, 1)

    def clear(self) -> None:
        """Forget all words."""
        with self._lock:
            self._forget(None)

    def fetch(
        self, keys: Sequence[bytes], weights: Hashable, compute: Callable[[list[bytes]], Tensor]
    ) -> Tensor:
        """Look words up; compute and keep those that are missing.

        Args:
            keys: Distinct words, all of one length.
            weights: What tells the state of the weights.
            compute: Gives the vectors of words, shape `(words, width)`.

        Returns:
            Vectors, shape `(words, width)`.
        """
        if os.getpid() != self._process:
            self._start()  # a thread of the parent may have held the lock when it forked
        with self._lock:
            if weights != self._weights:
                self._forget(weights)
            slots = [self._slots.get(key, -1) for key in keys]
            for key, slot in zip(keys, slots, strict=True):
                if slot >= 0:
                    self._slots.move_to_end(key)
            known = None if self._table is None else self._table[[s for s in slots if s >= 0]]
        missing = [key for key, slot in zip(keys, slots, strict=True) if slot < 0]
        self.hits += len(keys) - len(missing)
        self.misses += len(missing)
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
            with torch.inference_mode(False):  # a tensor made in inference mode is never free of it
                self._table = vectors.new_empty(self.max_bytes // entry_bytes, vectors.shape[1])
        capacity = len(self._table)
        slots = {}
        for number in range(max(len(keys) - capacity, 0), len(keys)):
            if keys[number] not in self._slots:  # another thread may have put it there
                is_full = len(self._slots) == capacity
                slot = self._slots.popitem(last=False)[1] if is_full else len(self._slots)
                self._slots[keys[number]] = slot
                slots[number] = slot
        self._table[list(slots.values())] = vectors[list(slots)]

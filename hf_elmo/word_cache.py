"""Encode distinct words once, and cache their vectors from call to call."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from .configuration_elmo import ElmoConfig
from .weight_fingerprint import KeptResult

WORDS_PER_CHUNK = 128  # words encoded at a time: bounds memory
MAX_BYTES = 64 * 2**20  # about 28,000 words of the original model
ENTRY_BYTES = 700  # of a tensor, a key's bytes object, and their node in an OrderedDict

# Character ids `(words, characters)` and rows of the lexicon `(words,)`; None = not read.
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
    """Encode words, equal words once, cached words not at all.

    Args:
        encoder: Computes the vectors of words.
        config: Its vocabulary sizes bound the ids.
        cache: Stores the vectors; None = they are not cached.
        state: Fingerprint of the encoder's weights; the cache is valid for this state only.
        input_ids: Character ids, shape `(words, characters)`, or None without characters.
        word_input_ids: Rows of the lexicon, shape `(words,)`, or None without a lexicon.

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
    return vectors.index_select(0, places.to(vectors.device))


def _read_ids(name: str, ids: Tensor | None, size: int) -> list[npt.NDArray[np.int32]]:
    """Copy ids to the CPU, shape `(words, columns)`, and check them there; [] if there are none."""
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

    Characters that cannot change a maximum are cut off: windows that are completely in the padding
    are all equal, so one of each width is enough.

    Args:
        encode: Computes the vectors of a chunk.
        config: Its filters and its padding are used.
        input_ids: As for `encode_distinct`.
        word_input_ids: As for `encode_distinct`.

    Returns:
        Word vectors, shape `(words, projection_size)`.
    """
    if input_ids is None:
        lengths = torch.zeros_like(cast(Tensor, word_input_ids))
    else:
        is_used = input_ids != config.char_padding_id
        lengths = (torch.arange(1, input_ids.shape[1] + 1) * is_used.cpu()).amax(dim=1)
    widest = max((width for width, _ in config.char_filters or []), default=0)
    order = lengths.argsort(stable=True)
    chunks = []
    for rows in order.split(WORDS_PER_CHUNK):
        stop = int(lengths[rows[-1]]) + widest if len(rows) else None
        ids = None if input_ids is None else input_ids[rows][:, :stop]
        chunks.append(encode(ids, None if word_input_ids is None else word_input_ids[rows]))
    vectors = torch.cat(chunks)
    return vectors[order.argsort().to(vectors.device)]


def is_plain(module: nn.Module, classes: Collection[type[nn.Module]]) -> bool:
    """Whether a module computes what its weights say: no part of it replaced, wrapped or hooked.

    Args:
        module: The module.
        classes: Of it and of all its parts. A subclass does not count: adapters and
            parametrizations make some, and keep weights where nobody looks for them.

    Returns:
        False if the result may depend on more than the module's parameters.
    """
    return not nn.modules.module._has_any_global_hook() and all(
        type(part) in classes
        and not (part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part))
        for part in module.modules()
    )


class WordCache:
    """Cache the vectors of words; without room, the least recently used ones are dropped.

    A vector depends on a word, on weights and on settings: when their fingerprint changes, all
    vectors are dropped. Threads and forked processes can use it; copies start empty.

    Args:
        max_bytes: Limit of the size of all entries; 0 = cache nothing.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._kept = KeptResult()
        self.clear()

    def __reduce__(self) -> tuple[type["WordCache"], tuple[int]]:
        return WordCache, (self.max_bytes,)

    def __len__(self) -> int:
        return len(self._vectors)

    def clear(self) -> None:
        """Drop all vectors."""
        self._kept.clear()
        self._vectors: OrderedDict[bytes, Tensor] = OrderedDict()

    def fetch(
        self, keys: Sequence[bytes], weights: object, compute: Callable[[list[bytes]], Tensor]
    ) -> Tensor:
        """Look words up; compute and store the missing ones.

        Args:
            keys: Distinct words, all of one length.
            weights: Fingerprint of the weights.
            compute: Computes the vectors of words, shape `(words, width)`.

        Returns:
            Vectors, shape `(words, width)`.
        """
        # Each operation on `vectors` is atomic, so that no thread waits for a lock.
        self._vectors = vectors = self._kept.get(weights, OrderedDict)
        found = {key: vectors.pop(key, None) for key in keys}
        missing = [key for key, vector in found.items() if vector is None]
        if missing:
            found.update(zip(missing, map(torch.clone, compute(missing)), strict=True))
        for key, vector in found.items():
            vectors[key] = vector
        entry_bytes = ENTRY_BYTES + len(keys[0]) + found[keys[0]].nbytes
        while len(vectors) * entry_bytes > self.max_bytes:
            with suppress(KeyError):  # another thread has taken the last one
                vectors.popitem(last=False)
        return torch.stack(list(found.values()))

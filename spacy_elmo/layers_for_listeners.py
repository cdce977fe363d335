"""Layers of docs in a pipeline, held until the last listener has read them."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from spacy.tokens import Doc

from .architecture import Array, DocLayers
from .segments import Segment

# A pipeline can process many docs at once (nlp.batch_size is 1000), and a biLM of the original size
# needs 12 KB per token. Layers beyond this limit are computed again when a listener needs them.
MAX_BYTES = 2**29


@dataclass
class HeldDoc:
    """Sentences of a doc, and its layers until all listeners have read them.

    Attributes:
        words: Ids of the doc's words, to notice if the doc is retokenized later.
        segments: Sentences that the biLM read. Later components may set other sentences in the doc,
            but all listeners get these.
        layers: Shape `(layers, tokens, width)`; None = not held.
        num_readers: Number of listeners that have not read the layers yet.
        is_noted: Whether the `elmo` component has processed the doc. If not, the entry ends when
            all listeners have read the layers, because the doc may get other sentences.
        was_trimmed: Whether the layers were dropped before all listeners had read them.
    """

    words: bytes
    segments: list[Segment]
    layers: Array | None
    num_readers: int
    is_noted: bool
    was_trimmed: bool = False


class HeldLayers:
    """Hold layers by doc. An entry exists as long as its doc; threads can share this object.

    Args:
        max_bytes: Maximum size of all layers together.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._docs: WeakKeyDictionary[Doc, HeldDoc] = WeakKeyDictionary()
        # Entries with layers, oldest first. There are few, even if the user keeps many docs.
        self._unread: WeakKeyDictionary[Doc, HeldDoc] = WeakKeyDictionary()

    def hold(
        self,
        doc: Doc,
        segments: list[Segment],
        layers: Array | None,
        num_readers: int,
        *,
        is_noted: bool = True,
    ) -> None:
        """Store the sentences of a doc, and its layers if there are readers.

        Args:
            doc: Doc.
            segments: Sentences that the biLM read.
            layers: Shape `(layers, tokens, width)`; None = not held.
            num_readers: Number of listeners that will read the layers.
            is_noted: Whether the `elmo` component has processed the doc, now or earlier.
        """
        known = None if is_noted else self._find(doc)
        is_noted = is_noted or (known is not None and known.is_noted)
        layers = layers if num_readers > 0 else None
        self._unread.pop(doc, None)
        if layers is None and not is_noted:
            self._docs.pop(doc, None)
            return
        held = HeldDoc(_number_words(doc), segments, layers, num_readers, is_noted)
        self._docs[doc] = held
        if layers is not None:
            self._unread[doc] = held

    def take(self, doc: Doc) -> DocLayers | None:
        """Return the layers of a doc to a listener; None = not held."""
        held = self._find(doc)
        layers = None if held is None else held.layers  # read once: another thread may set None
        if held is None or layers is None:
            return None
        held.num_readers -= 1
        if held.num_readers <= 0:
            self._drop(doc, held)
            if not held.is_noted:
                self._docs.pop(doc, None)
        return DocLayers(layers, held.segments)

    def get_segments(self, doc: Doc) -> list[Segment] | None:
        """Return the sentences of a doc; None = unknown."""
        held = self._find(doc)
        return None if held is None else held.segments

    def _find(self, doc: Doc) -> HeldDoc | None:
        held = self._docs.get(doc)
        return held if held is not None and held.words == _number_words(doc) else None

    def trim(self) -> None:
        """Drop the oldest layers until the others are within the limit."""
        # Iterate over a list, keyrefs(): another thread may add docs at the same time.
        docs = [doc for ref in self._unread.keyrefs() if (doc := ref()) is not None]
        unread = [(doc, held) for doc in docs if (held := self._unread.get(doc)) is not None]
        sizes = [getattr(held.layers, "nbytes", 0) for _, held in unread]
        num_bytes = sum(sizes)
        for (doc, held), size in zip(unread, sizes, strict=True):
            if num_bytes <= self.max_bytes:
                break
            num_bytes -= size
            held.was_trimmed = True
            self._drop(doc, held)

    def warn_of_trimmed(self, docs: Iterable[Doc]) -> None:
        """Warn if layers of docs that are needed now were dropped for lack of room."""
        if any(held.was_trimmed for doc in docs if (held := self._find(doc)) is not None):
            warnings.warn(
                "Layers of docs were dropped, and are computed again for each component that reads "
                f"'elmo': those of all docs of a batch need more than {self.max_bytes >> 20} MB. "
                "Pass a smaller batch_size to nlp.pipe, or set nlp.batch_size.",
                stacklevel=3,
            )

    def _drop(self, doc: Doc, held: HeldDoc) -> None:
        held.layers = None
        self._unread.pop(doc, None)

    def clear(self) -> None:
        """Drop all docs."""
        self._docs.clear()
        self._unread.clear()


def _number_words(doc: Doc) -> bytes:
    return doc.to_array("ORTH").tobytes()

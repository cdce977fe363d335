"""Layers of the docs at hand, which are held until the last listener has read them."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from spacy.tokens import Doc

from .architecture import Array, DocLayers
from .segments import Segment

# Docs on their way through a pipeline may be many (nlp.batch_size is 1000), and an original-size
# biLM gives 12 KB a token: what does not find room is computed again when it is asked for.
MAX_BYTES = 2**29


@dataclass
class HeldDoc:
    """What is known of a doc.

    Attributes:
        words: The doc's words when it came, as numbers: it may be retokenised later.
        segments: The sentences that the biLM has read. Components that come later may set others;
            all listeners shall have the same.
        layers: Shape `(layers, tokens, width)`, or None.
        num_readers: Listeners that have not read the layers yet.
    """

    words: bytes
    segments: list[Segment]
    layers: Array | None
    num_readers: int


class HeldLayers:
    """Hold the layers of docs, for as long as the docs live. Threads may share it.

    Args:
        max_bytes: Bound of the layers.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._docs: WeakKeyDictionary[Doc, HeldDoc] = WeakKeyDictionary()

    def hold(
        self, doc: Doc, segments: list[Segment], layers: Array | None, num_readers: int
    ) -> None:
        """Note the sentences of a doc, and hold its layers for so many listeners."""
        layers = layers if num_readers > 0 else None
        self._docs.pop(doc, None)
        self._docs[doc] = HeldDoc(_number_words(doc), segments, layers, num_readers)

    def take(self, doc: Doc) -> DocLayers | None:
        """Return the layers of a doc, for a listener, or None."""
        held = self._find(doc)
        layers = None if held is None else held.layers  # once: another thread may drop them
        if held is None or layers is None:
            return None
        held.num_readers -= 1
        if held.num_readers <= 0:
            held.layers = None
        return DocLayers(layers, held.segments)

    def get_segments(self, doc: Doc) -> list[Segment] | None:
        """Return the sentences that were noted of a doc, or None."""
        held = self._find(doc)
        return None if held is None else held.segments

    def _find(self, doc: Doc) -> HeldDoc | None:
        held = self._docs.get(doc)
        return held if held is not None and held.words == _number_words(doc) else None

    def trim(self) -> None:
        """Drop the oldest layers until the rest is within its bound."""
        # keyrefs() is a list, so that another thread may add docs meanwhile.
        docs = [self._docs.get(doc) for ref in self._docs.keyrefs() if (doc := ref()) is not None]
        sizes = [(held, held.layers.nbytes) for held in docs if held and held.layers is not None]
        num_bytes = sum(size for _, size in sizes)
        for held, size in sizes:
            if num_bytes <= self.max_bytes:
                break
            num_bytes -= size
            held.layers = None

    def clear(self) -> None:
        """Forget all docs."""
        self._docs.clear()


def _number_words(doc: Doc) -> bytes:
    return doc.to_array("ORTH").tobytes()

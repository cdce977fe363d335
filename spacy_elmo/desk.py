"""Layers of the docs at hand, which lie here until the last listener has read them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from spacy.tokens import Doc

from .architecture import Array, DocLayers
from .segments import Segment

# Docs on their way through a pipeline may be many (nlp.batch_size is 1000), and an original-size
# biLM gives 12 KB a token: what does not find room is computed again when it is asked for.
MAX_BYTES = 2**29


@dataclass
class Place:
    """What is known of a doc.

    Attributes:
        num_tokens: Tokens of the doc when it was put here.
        segments: The sentences that the biLM has read. Components that come later may set others;
            all listeners shall have the same.
        layers: Shape `(layers, tokens, width)`, or None.
        num_readers: Listeners that have not read the layers yet.
    """

    num_tokens: int
    segments: list[Segment]
    layers: Array | None
    num_readers: int


class LayerDesk:
    """Hold the layers of docs, for as long as the docs live.

    Args:
        max_bytes: Bound of the layers.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._places: WeakKeyDictionary[Doc, Place] = WeakKeyDictionary()

    def put(
        self, doc: Doc, segments: list[Segment], layers: Array | None, num_readers: int
    ) -> None:
        """Note the sentences of a doc, and hold its layers for so many listeners."""
        layers = layers if num_readers > 0 else None
        self._places.pop(doc, None)
        self._places[doc] = Place(len(doc), segments, layers, num_readers)

    def take(self, doc: Doc) -> DocLayers | None:
        """Give the layers of a doc to a listener, if they are here."""
        place = self._find(doc)
        if place is None or place.layers is None:
            return None
        layers = DocLayers(place.layers, place.segments)
        place.num_readers -= 1
        if place.num_readers <= 0:
            place.layers = None
        return layers

    def get_segments(self, doc: Doc) -> list[Segment] | None:
        """Give the sentences of a doc that were noted."""
        place = self._find(doc)
        return None if place is None else place.segments

    def _find(self, doc: Doc) -> Place | None:
        place = self._places.get(doc)
        return place if place is not None and place.num_tokens == len(doc) else None

    def tidy(self) -> None:
        """Drop the oldest layers until the rest is within its bound."""
        places = [place for place in self._places.values() if place.layers is not None]
        num_bytes = sum(place.layers.nbytes for place in places if place.layers is not None)
        for place in places:
            if num_bytes <= self.max_bytes or place.layers is None:
                break
            num_bytes -= place.layers.nbytes
            place.layers = None

    def clear(self) -> None:
        """Forget all docs."""
        self._places.clear()


class TrainingBatch:
    """Layers of the docs that the biLM learns from, and the gradients that listeners send.

    Args:
        docs: The docs of the batch.
        layers: The layers of each.
        backprop: Takes the gradient of each doc's layers, once all have come.
    """

    def __init__(
        self,
        docs: Sequence[Doc],
        layers: Sequence[DocLayers],
        backprop: Callable[[list[Array]], object],
    ) -> None:
        self._docs = list(docs)  # kept, so that an id is not given again
        self._places = {id(doc): number for number, doc in enumerate(docs)}
        self._layers = layers
        self._gradients: list[Array] | None = None
        self._backprop = backprop

    @property
    def has_gradients(self) -> bool:
        """Whether a listener has sent any."""
        return self._gradients is not None

    def find(self, doc: Doc) -> DocLayers | None:
        """Give the layers of a doc, if it is one of the batch."""
        place = self._places.get(id(doc))
        return None if place is None else self._layers[place]

    def receive(self, docs: Iterable[Doc], gradients: Iterable[Array]) -> float:
        """Add up the gradients of docs' layers; give the sum of their squares."""
        if self._gradients is None:
            self._gradients = [0.0 * layers for layers, _ in self._layers]
        loss = 0.0
        for doc, gradient in zip(docs, gradients, strict=True):
            if id(doc) in self._places:
                self._gradients[self._places[id(doc)]] += gradient
                loss += float((gradient**2).sum())
        return loss

    def backpropagate(self) -> None:
        """Add what has come to the gradients of the biLM's parameters."""
        if self._gradients is not None:
            self._backprop(self._gradients)

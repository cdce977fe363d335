"""The batch of docs that the biLM learns from."""

from collections.abc import Callable, Iterable, Sequence

from spacy.tokens import Doc

from .architecture import Array, DocLayers


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
        self._numbers = {id(doc): number for number, doc in enumerate(docs)}
        self._layers = layers
        self._gradients: list[Array] | None = None
        self._backprop = backprop

    @property
    def has_gradients(self) -> bool:
        """Whether a listener has sent any."""
        return self._gradients is not None

    def find(self, doc: Doc) -> DocLayers | None:
        """Return the layers of a doc of the batch, or None."""
        number = self._numbers.get(id(doc))
        return None if number is None else self._layers[number]

    def receive(self, docs: Iterable[Doc], gradients: Iterable[Array]) -> float:
        """Add up the gradients of docs' layers; return the sum of their squares."""
        if self._gradients is None:
            self._gradients = [0.0 * layers for layers, _ in self._layers]
        loss = 0.0
        for doc, gradient in zip(docs, gradients, strict=True):
            if id(doc) in self._numbers:
                self._gradients[self._numbers[id(doc)]] += gradient
                loss += float((gradient**2).sum())
        return loss

    def backpropagate(self) -> None:
        """Add what has come to the gradients of the biLM's parameters."""
        if self._gradients is not None:
            self._backprop(self._gradients)

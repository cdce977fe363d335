"""Pass ELMo's layers to the listeners of a pipeline, and their gradients to the biLM."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import Optimizer

from .architecture import (
    Array,
    DocLayers,
    ThincModel,
    compute_layers,
    find_doc_segments,
    get_shim,
    train_layers,
)
from .layer_cache import make_layer_cache
from .layers_for_listeners import HeldLayers
from .segments import Segment, find_segments
from .stored_bilm import limit_fork_threads

if TYPE_CHECKING:
    from hf_elmo.inference.layer_cache import LayerCache


@dataclass
class TrainingBatch:
    """Batch of docs that the biLM learns from.

    Attributes:
        docs: Docs of the batch.
        layers: Layers of each doc.
        backprop: Function to call once with a list: the gradient of each doc's layers.
        gradients: Sum of the gradients that listeners have sent; None = no gradients yet.
    """

    docs: Sequence[Doc]
    layers: Sequence[DocLayers]
    backprop: Callable[[list[Array]], object]
    gradients: list[Array] | None = None

    def receive(self, docs: Sequence[Doc], gradients: Sequence[Array]) -> float:
        """Add the gradients of docs' layers; return the sum of the squared gradients.

        Docs that are not in the batch are skipped, such as the sentences of an entity linker, with
        a warning.
        """
        numbers = {id(doc): number for number, doc in enumerate(self.docs)}
        loss = 0.0
        for doc, gradient in zip(docs, gradients, strict=True):
            if id(doc) not in numbers:
                warnings.warn(
                    "The biLM does not learn from a component that reads other docs than those of "
                    "the batch, such as an entity linker.",
                    stacklevel=2,
                )
                continue
            if self.gradients is None:
                self.gradients = [0.0 * layers for layers, _ in self.layers]
            self.gradients[numbers[id(doc)]] += gradient
            loss += float((gradient**2).sum())
        return loss


class LayerSource:
    """Pass the layers of docs to listeners, and their gradients to the biLM.

    Args:
        model: Model of `spacy_elmo.ElmoModel.v1`.
        vocab: Vocab of the pipeline.
        frozen: Training does not change the biLM.

    Attributes:
        listener_map: Listeners by component.
        held: Layers of recent docs.
        is_initializing: Whether listeners read samples of the training docs, which have no
            sentences yet; until the next batch.
        cache: Layers of sentences, for training in several epochs; None = no cache.
    """

    def __init__(self, model: ThincModel, vocab: Vocab, *, frozen: bool) -> None:
        self.model = model
        self.vocab = vocab
        self.frozen = frozen
        self.listener_map: dict[str, list[ThincModel]] = {}
        self.clear()

    def clear(self) -> None:
        """Drop all layers and gradients."""
        self.held = HeldLayers()
        self.is_initializing = False
        self.cache: LayerCache | None = None
        self._batch: TrainingBatch | None = None
        self._waiting_sgd: Optimizer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("model", "vocab", "frozen", "listener_map")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.clear()

    @property
    def listeners(self) -> list[ThincModel]:
        """Listeners of all components."""
        return [listener for listeners in self.listener_map.values() for listener in listeners]

    def remove_listener(self, listener: ThincModel, component_name: str) -> bool:
        """Remove a listener; return whether it was known."""
        listeners = self.listener_map.get(component_name, [])
        # A new list, since nlp.replace_listeners calls this while it iterates over the old one.
        remaining = [other for other in listeners if other is not listener]
        if remaining:
            self.listener_map[component_name] = remaining
        elif listeners:
            del self.listener_map[component_name]
        return len(remaining) < len(listeners)

    def read(
        self, docs: Sequence[Doc], *, is_train: bool
    ) -> tuple[list[DocLayers], Callable[[list[Array]], None] | None]:
        """Return the layers of docs to a listener.

        The layers come from the current training batch, from the held layers, from the cache, or
        from the biLM. Earlier computations do not change the result.

        Args:
            docs: Any docs.
            is_train: Whether the listener is trained.

        Returns:
            The layers, and a function that takes their gradients (None if the biLM is not trained).
        """
        if is_train:
            self.is_initializing = False
        if is_train and self.frozen and self.cache is None:
            self.cache = make_layer_cache()
        batch = self._batch if is_train else None
        trained = zip(batch.docs, batch.layers, strict=True) if batch else ()
        found = {id(doc): layers for doc, layers in trained}
        held = {id(doc): self.held.take(doc) for doc in docs if id(doc) not in found}
        found |= {number: layers for number, layers in held.items() if layers is not None}
        lacking = [doc for doc in docs if id(doc) not in found]
        self.held.warn_of_trimmed(lacking)
        if not is_train and any(doc.vocab is not self.vocab for doc in lacking):
            warnings.warn(
                "A component reads the 'elmo' component of another pipeline, which is not saved "
                "with its own. Add 'elmo' to its pipeline too (source=...), or call "
                "nlp.replace_listeners in the first pipeline before you take the component over.",
                stacklevel=2,
            )
        segments = [self.held.get_segments(x) or self._find_segments(x) for x in lacking]
        computed = compute_layers(self.model, lacking, segments, cache=self.cache)
        for doc, layers in zip(lacking, computed, strict=True):
            found[id(doc)] = layers
            self.held.hold(
                doc, layers.segments, layers.layers, len(self.listeners) - 1, is_noted=is_train
            )
        self.held.trim()
        results = [found[id(doc)] for doc in docs]
        return results, None if batch is None else partial(self._receive, batch, docs)

    def _find_segments(self, doc: Doc) -> list[Segment]:
        if self.is_initializing and self.model.attrs["segment"] == "sents":
            return find_segments(doc, "auto", self.model.attrs["max_length"])
        return find_doc_segments(self.model, doc)

    def start_batch(self, docs: Sequence[Doc], losses: dict[str, float], name: str) -> None:
        """Start a training batch; if the biLM is frozen, only store the sentences of the docs.

        Args:
            docs: Docs of the batch.
            losses: Losses by component; the squared gradients are added to the loss of `name`.
            name: Name of the `elmo` component.
        """
        self.finish_batch()
        if self._waiting_sgd is not None and get_shim(self.model).has_gradients:
            self._update_weights(self._waiting_sgd)  # of earlier parts of the batch
        self._waiting_sgd = None
        segments = [find_doc_segments(self.model, doc) for doc in docs]
        for doc, rows in zip(docs, segments, strict=True):
            self.held.hold(doc, rows, None, 0)
        if not self.frozen:
            self._losses, self._name = losses, name
            losses.setdefault(name, 0.0)
            self._batch = TrainingBatch(docs, *train_layers(self.model, docs, segments))

    def _receive(
        self, batch: TrainingBatch, docs: Sequence[Doc], gradients: Sequence[Array]
    ) -> None:
        loss = batch.receive(docs, gradients)
        self._losses[self._name] = self._losses.get(self._name, 0.0) + loss

    def take_step(self, sgd: Optimizer) -> None:
        """Update the biLM with the gradients; if those of the batch are not there yet, wait."""
        if self.frozen:
            return
        self.finish_batch()
        batch = self._batch
        if batch is not None and any(layers.segments for layers in batch.layers):
            self._waiting_sgd = sgd
        elif get_shim(self.model).has_gradients:
            self._update_weights(sgd)

    def finish_batch(self) -> None:
        """Backpropagate the listeners' gradients, then take a step that `take_step` postponed."""
        self.is_initializing = False
        batch = self._batch
        if batch is None or batch.gradients is None:
            return
        limit_fork_threads()
        self._batch = None
        batch.backprop(batch.gradients)
        if self._waiting_sgd is not None:
            self._update_weights(self._waiting_sgd)
            self._waiting_sgd = None

    def _update_weights(self, sgd: Optimizer) -> None:
        self.model.finish_update(sgd)
        self.held.clear()


class SourceLink:
    """Weak reference from a listener to the `LayerSource` of an `elmo` component."""

    def __init__(self, source: LayerSource | None = None) -> None:
        self.connect(source)

    def connect(self, source: LayerSource | None) -> None:
        """Refer to a source; None = no source."""
        self._source = None if source is None else ref(source)

    def find(self) -> LayerSource | None:
        """Return the source; None = there is no source."""
        return None if self._source is None else self._source()

    def get(self) -> LayerSource:
        """Return the source.

        Raises:
            ValueError: If there is no source.
        """
        source = self.find()
        if source is None:
            raise ValueError(
                "This component mixes the layers of an 'elmo' component, but no such component is "
                "before it in its pipeline. Add one there (nlp.add_pipe('elmo', first=True)), load "
                "the pipeline without excluding it, or, to move the component to another pipeline, "
                "give it a biLM of its own first with nlp.replace_listeners."
            )
        return source

    def __deepcopy__(self, memo: dict[int, Any]) -> "SourceLink":
        # If only a model is copied, as in nlp.rehearse, it reads from the same component. In a copy
        # of a whole pipeline, it reads from the copied component.
        copied = memo.get(id(self.find()))
        return self if copied is None else SourceLink(copied)

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceLink, (), self.find()

    def __setstate__(self, source: LayerSource | None) -> None:
        self.connect(source)

"""Where the listeners of a pipeline get ELMo's layers, whatever batch their docs are in."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast
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
from .held_layers import HeldLayers
from .layer_cache import make_layer_cache
from .training_batch import TrainingBatch

if TYPE_CHECKING:
    from hf_elmo.inference.layer_cache import LayerCache


class LayerSource:
    """Hand the layers of docs to listeners, and their gradients to the biLM.

    Args:
        model: What `spacy_elmo.ElmoModel.v1` makes.
        vocab: Of the docs that the component reads.
        frozen: Whether training leaves the biLM as it is.

    Attributes:
        listener_map: The models that will ask for the layers of each doc, by component.
        held: Layers of the docs at hand.
        cache: Layers of sentences that training asks for again and again, or None.
    """

    def __init__(self, model: ThincModel, vocab: Vocab, *, frozen: bool) -> None:
        self.model = model
        self.vocab = vocab
        self.frozen = frozen
        self.listener_map: dict[str, list[ThincModel]] = {}
        self.clear()

    def clear(self) -> None:
        """Forget the docs at hand and all layers."""
        self.held = HeldLayers()
        self.cache: LayerCache | None = None
        self._batch: TrainingBatch | None = None
        self._losses: dict[str, float] = {}
        self._name = ""
        self._waiting_sgd: Optimizer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("model", "vocab", "frozen", "listener_map")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.clear()

    @property
    def listeners(self) -> list[ThincModel]:
        """The models of all components that ask for layers."""
        return [listener for listeners in self.listener_map.values() for listener in listeners]

    def add_listener(self, listener: ThincModel, component_name: str) -> None:
        """Note a model that will ask for layers."""
        listeners = self.listener_map.setdefault(component_name, [])
        if listener not in listeners:
            listeners.append(listener)

    def remove_listener(self, listener: ThincModel, component_name: str) -> bool:
        """Forget a model that asked for layers; return whether it was known."""
        listeners = self.listener_map.get(component_name, [])
        if listener not in listeners:
            return False
        # nlp.replace_listeners calls this while it goes through the old list: that must stay.
        self.listener_map[component_name] = [other for other in listeners if other is not listener]
        if not self.listener_map[component_name]:
            del self.listener_map[component_name]
        return True

    def read(
        self, docs: Sequence[Doc], *, is_train: bool
    ) -> tuple[list[DocLayers], Callable[[list[Array]], None] | None]:
        """Return the layers of docs, for a listener.

        They come from the batch that the biLM learns from, from the layers that are held, from the
        cache, or they are computed now: the listener gets the same, whatever ran before.

        Args:
            docs: Any docs.
            is_train: Whether the listener learns.

        Returns:
            The layers, and a function that takes their gradients if the biLM learns from them.
        """
        if is_train and self.frozen and self.cache is None:
            self.cache = make_layer_cache()
        batch = self._batch if is_train else None
        found = {
            id(doc): (batch.find(doc) if batch else None) or self.held.take(doc) for doc in docs
        }
        lacking = [doc for doc in docs if found[id(doc)] is None]
        if not is_train and any(doc.vocab is not self.vocab for doc in lacking):
            warnings.warn(
                "A component reads the 'elmo' component of another pipeline, which is not saved "
                "with its own. Add 'elmo' to its pipeline too (source=...), or call "
                "nlp.replace_listeners in the first pipeline before you take the component over.",
                stacklevel=2,
            )
        for doc, layers in zip(lacking, self._compute_layers(lacking), strict=True):
            found[id(doc)] = layers
            self.held.hold(doc, layers.segments, layers.layers, len(self.listeners) - 1)
        self.held.trim()
        results = [cast(DocLayers, found[id(doc)]) for doc in docs]
        return results, None if batch is None else partial(self._receive, batch, docs)

    def _compute_layers(self, docs: Sequence[Doc]) -> list[DocLayers]:
        segments = [
            self.held.get_segments(doc) or find_doc_segments(self.model, doc) for doc in docs
        ]
        return compute_layers(self.model, docs, segments, cache=self.cache)

    def _receive(
        self, batch: TrainingBatch, docs: Sequence[Doc], gradients: Sequence[Array]
    ) -> None:
        loss = batch.receive(docs, gradients)
        self._losses[self._name] = self._losses.get(self._name, 0.0) + loss

    def start_batch(self, docs: Sequence[Doc], losses: dict[str, float], name: str) -> None:
        """Begin a batch that the biLM learns from, or, if it is frozen, only look at its docs.

        Args:
            docs: The batch.
            losses: Where the squares of the gradients that will come are added up.
            name: Under which name: that of the `elmo` component.
        """
        self.finish_batch()
        self._waiting_sgd = None
        segments = [find_doc_segments(self.model, doc) for doc in docs]
        for doc, rows in zip(docs, segments, strict=True):
            self.held.hold(doc, rows, None, 0)
        self._losses, self._name = losses, name
        if not self.frozen:
            losses.setdefault(name, 0.0)
            layers, backprop = train_layers(self.model, docs, segments)
            self._batch = TrainingBatch(docs, layers, backprop)

    def take_step(self, sgd: Optimizer) -> None:
        """Let the biLM take a step, now or as soon as gradients have come."""
        if self.frozen:
            return
        self._waiting_sgd = sgd
        self.finish_batch()
        if self._waiting_sgd is not None and get_shim(self.model).has_gradients:
            # The last part of a batch brought none, but the parts before it did.
            self.model.finish_update(sgd)
            self.held.clear()

    def finish_batch(self) -> None:
        """Take the gradients that have come, and the step that waits for them."""
        if self._batch is None or not self._batch.has_gradients:
            return
        self._batch.backpropagate()
        self._batch = None
        if self._waiting_sgd is not None:
            self.model.finish_update(self._waiting_sgd)
            self._waiting_sgd = None
            self.held.clear()


class SourceLink:
    """Where a listener finds the source of its layers, which belongs to an `elmo` component."""

    def __init__(self) -> None:
        self._source: ref[LayerSource] | None = None

    def connect(self, source: LayerSource | None) -> None:
        """Point to a source, or to none."""
        self._source = None if source is None else ref(source)

    def find(self) -> LayerSource | None:
        """Return the source if there is one."""
        return None if self._source is None else self._source()

    def get(self) -> LayerSource:
        """Return the source.

        Raises:
            ValueError: If there is none.
        """
        source = self.find()
        if source is None:
            raise ValueError(
                "This component mixes the layers of an 'elmo' component, and none stands before it "
                "in its pipeline. Add one there (nlp.add_pipe('elmo', first=True)), load the "
                "pipeline without excluding it, or, to move the component to another pipeline, "
                "give it a biLM of its own first with nlp.replace_listeners."
            )
        return source

    def __deepcopy__(self, memo: dict[int, Any]) -> "SourceLink":
        return self  # copies of a model, as nlp.rehearse makes them, ask the same component

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceLink, (), self.find()

    def __setstate__(self, source: LayerSource | None) -> None:
        self.connect(source)

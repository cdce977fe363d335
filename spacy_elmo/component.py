"""The `elmo` component: vectors in context for the tokens of a doc."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast
from weakref import WeakSet

import torch
from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.tokens import Doc
from spacy.training import Example, validate_examples
from thinc.api import Model, Optimizer

from .architecture import (
    Array,
    ThincModel,
    alloc_layers,
    find_doc_segments,
    get_shim,
    iterate_word_layers,
    to_ops,
)
from .extensions import put_vectors, register_extensions, set_layers, set_vectors
from .layer_source import LayerSource
from .listener import ANY_UPSTREAM, LISTENER_NAME, replace_listener, replace_listener_config
from .mix import MixSettings, mix_words
from .saved_component import Part, SavedComponent
from .segments import Segment, SegmentBy

# Words that `pipe` gathers, so that the biLM sees sentences of like length together.
WORDS_AT_ONCE = 16384

SetTensor: TypeAlias = bool | Literal["auto"]


class Prediction(NamedTuple):
    """What `Elmo` finds for a doc.

    Attributes:
        vectors: The mix, shape `(tokens, width)`; zeros for white space.
        layers: Shape `(layers, tokens, width)`; None if nothing wants them.
        segments: The words of each sentence that the biLM has read.
    """

    vectors: Array
    layers: Array | None
    segments: list[Segment]


@Language.factory(
    "elmo",
    assigns=["doc.tensor", "doc._.elmo", "doc._.elmo_layers", "span._.elmo", "token._.elmo"],
    default_config={
        "model": {"@architectures": "spacy_elmo.ElmoModel.v1"},
        "segment": "auto",
        "max_length": None,
        "max_batch_tokens": None,
        "set_tensor": "auto",
        "store_layers": False,
        "store_weights": True,
        "frozen": True,
        "device": None,
        "mix": {"layers": None, "weights": None, "gamma": None},
    },
)
class Elmo(SavedComponent, TrainablePipe):  # type: ignore[misc]  # a C class, of no known type
    """Set each token's vector in context, as `doc.tensor`, and its layers on request.

    Args:
        nlp: The pipeline.
        name: Name of the component.
        model: What `spacy_elmo.ElmoModel.v1` makes.
        segment: What the biLM reads as a sentence: `"sents"`: the doc's sentences; `"doc"`: the
            whole doc; `"auto"`: the sentences where a component before this one has set them, else
            the whole doc. Long ones run in windows, with the same result.
        max_length: Words after which a longer sentence is cut into several that do not see each
            other: faster for long docs without sentences; None = never.
        max_batch_tokens: Words that the biLM runs at once, which bounds memory; None = 2048.
        set_tensor: Whether `doc.tensor` is set. `"auto"`: unless a component after this one reads
            the vectors of a `tok2vec` component from there; `token._.elmo` then has them still.
        store_layers: Whether `doc._.elmo_layers` is set.
        store_weights: Whether the saved pipeline holds the weights. If not, it holds the model's
            name and revision, and needs both to be there when it is loaded.
        frozen: Whether training leaves the biLM as it is.
        device: Where the biLM runs, such as `"cuda:0"`; None = where the pipeline does.
        mix: `layers`, `weights`, `gamma` of the vectors, as `MixSettings` describes them.

    Raises:
        ValueError: If a setting is not what it may be.
    """

    def __init__(
        self,
        nlp: Language,
        name: str,
        model: ThincModel,
        *,
        segment: SegmentBy,
        max_length: int | None,
        max_batch_tokens: int | None,
        set_tensor: SetTensor,
        store_layers: bool,
        store_weights: bool,
        frozen: bool,
        device: str | None,
        mix: dict[str, Any],
    ) -> None:
        for setting, value in (("max_length", max_length), ("max_batch_tokens", max_batch_tokens)):
            if value is not None and value < 1:
                raise ValueError(f"Expected {setting} of at least 1, or None, got {value}.")
        if not frozen and not store_weights:
            raise ValueError(
                "Expected store_weights = true where frozen = false: what the biLM learns would "
                "not be saved."
            )
        shim = get_shim(model)
        if not frozen and shim.dtype not in (None, "float32"):
            raise ValueError(
                'Expected model.dtype = "float32" or null where frozen = false: what is learned '
                f"would be rounded away in {shim.dtype}."
            )
        if not frozen:
            shim.dtype = "float32"  # also where the model's own weights are of half precision
        self.vocab = nlp.vocab
        self.model = model
        self.name = name
        self.set_tensor = set_tensor
        self.store_layers = store_layers
        self.source = LayerSource(model, nlp.vocab, frozen=frozen)
        self.mix = MixSettings.from_config(mix)
        model.attrs.update(
            segment=segment, max_length=max_length, max_batch_tokens=max_batch_tokens
        )
        shim.store_weights = store_weights
        if device is not None:
            shim.device = _find_device(device)
        self._tensor_readers: WeakSet[Tok2VecListener] = WeakSet()
        model.attrs["replace_listener"] = replace_listener
        model.attrs["replace_listener_cfg"] = replace_listener_config
        register_extensions()

    @property
    def is_trainable(self) -> bool:
        """Whether training changes the biLM."""
        return not self.source.frozen

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Apply the component to a stream of docs.

        Args:
            stream: Any docs.
            batch_size: Docs that are gathered at most; long ones are gathered in fewer.

        Returns:
            The docs, in their order.
        """
        for docs in _gather(stream, batch_size, WORDS_AT_ONCE):
            yield from super().pipe(docs, batch_size=len(docs))

    def predict(self, docs: Iterable[Doc]) -> list[Prediction]:
        """Compute the vectors of docs without changing them.

        Raises:
            ValueError: If a doc has no sentences and `segment` asks for them, or the mix does not
                fit the biLM.
        """
        self.source.finish_batch()
        docs = list(docs)
        self.source.vocab = docs[0].vocab if docs else self.source.vocab
        segments = [find_doc_segments(self.model, doc) for doc in docs]
        ops, config = self.model.ops, get_shim(self.model).load().model.config
        keeps_layers = self.store_layers or bool(self.listener_map)
        predictions = [
            Prediction(
                cast(Array, ops.alloc((len(doc), cast(int, config.hidden_size)))),
                alloc_layers(self.model, doc) if keeps_layers else None,
                segments[number],
            )
            for number, doc in enumerate(docs)
        ]
        parts = iterate_word_layers(
            self.model,
            docs,
            segments,
            whole_sentences=config.mix_layer_norm != "none",
            cache=self.source.cache,
        )
        for words in parts:
            prediction = predictions[words.doc]
            prediction.vectors[words.rows] = to_ops(ops, mix_words(words.layers, self.mix, config))
            if prediction.layers is not None:
                prediction.layers[:, words.rows] = to_ops(ops, words.layers)
        return predictions

    def set_annotations(self, docs: Iterable[Doc], predictions: Iterable[Prediction]) -> None:
        """Put the vectors where the settings want them, and hold the layers for the listeners.

        Args:
            docs: The docs.
            predictions: What `predict` has given for them.
        """
        for doc, (vectors, layers, segments) in zip(docs, predictions, strict=True):
            self._set_vectors(doc, vectors)
            if self.store_layers:
                set_layers(doc, layers)
            self.source.held.hold(doc, segments, layers, len(self.listeners))
        self.source.held.trim()

    def _set_vectors(self, doc: Doc, vectors: Array) -> None:
        is_set = self.set_tensor if self.set_tensor != "auto" else not self._tensor_readers
        if is_set:
            put_vectors(doc, vectors)
        else:
            set_vectors(doc, vectors if self.set_tensor == "auto" else None)

    # Training

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Language | None = None,
        cache: Any = None,
    ) -> None:
        """Read the weights, and check that the settings fit them.

        Args:
            get_examples: Not used: the biLM comes trained.
            nlp: The pipeline, of which later components learn the width of their listeners.
            cache: A `LayerCache`, for the layers while other components are trained; None = one in
                memory.

        Raises:
            OSError: If there is no model of the name.
            ValueError: If what is there is no ELMo, or the mix does not fit it, or layers shall be
                kept that training changes.
        """
        if cache is not None and self.is_trainable:
            raise ValueError("Expected no cache where frozen = false: the layers change.")
        self.source.cache = cache
        self.model.initialize()
        self.predict([Doc(self.vocab, words=["x"], sent_starts=[True])])
        if nlp is not None:
            self._check_listeners(nlp)

    def _check_listeners(self, nlp: Language) -> None:
        """Warn if later components have a tok2vec and none reads this; complete their sizes."""
        later = nlp.pipeline[nlp.pipe_names.index(self.name) + 1 :]
        models = {name: getattr(pipe, "model", None) for name, pipe in later}
        own = [name for name, m in models.items() if isinstance(m, Model) and m.has_ref("tok2vec")]
        if own and not self.listener_map:
            warnings.warn(
                f"No component reads {self.name!r}: {', '.join(own)} will be trained without ELMo. "
                "To let one read it, replace its section [components.NAME.model.tok2vec] by the "
                'line @architectures = "spacy_elmo.ElmoListener.v1".',
                stacklevel=2,
            )
        width = get_shim(self.model).load().model.config.hidden_size
        for name in self.listening_components:
            model = cast(Any, models[name])
            if not model.has_ref("tok2vec") or model.get_ref("tok2vec").name != LISTENER_NAME:
                continue  # an ElmoTok2Vec has a width of its own
            residuals = (x for x in model.walk() if x.name.startswith("residual("))
            for node in residuals:  # of an entity linker, which takes the width when it is built
                for layer in node.walk():
                    for dim in ("nI", "nO"):
                        if layer.has_param("W") is None and layer.has_dim(dim) is None:
                            layer.set_dim(dim, width)

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optimizer | None = None,
        losses: dict[str, float] | None = None,
    ) -> dict[str, float]:
        """Begin a batch that the biLM learns from, or, if it is frozen, only look at its docs.

        Args:
            examples: The batch.
            drop: Not used: the biLM has a dropout of its own.
            sgd: Optimiser, or None if `finish_update` comes.
            losses: Where the sum of squares of the gradients that will come is added, as of spaCy's
                own `tok2vec`.

        Returns:
            The losses.
        """
        examples = list(examples)
        validate_examples(examples, "Elmo.update")
        losses = {} if losses is None else losses
        docs = [example.predicted for example in examples]
        self.source.start_batch(docs, losses, self.name)
        if sgd:  # spaCy's training loop says False
            self.finish_update(sgd)
        return losses

    def finish_update(self, sgd: Optimizer) -> None:
        """Let the biLM take a step, as soon as the listeners have sent their gradients.

        `nlp.update(sgd=...)` calls this before they have: then the step waits for the next use of
        the biLM.
        """
        self.source.take_step(sgd)

    def use_params(self, params: dict[tuple[int, str], Any]) -> Iterator[None]:
        """Put an optimiser's averages in the place of the weights, after a step that waits.

        `nlp.use_params` takes a bare iterator, which yields once.
        """
        self.source.finish_batch()
        with self.model.use_params(params):
            yield

    # spaCy calls these for the components that come after this one.

    @property
    def listener_map(self) -> dict[str, list[ThincModel]]:
        """The layers of later components that read this one, by component."""
        return self.source.listener_map

    @listener_map.setter
    def listener_map(self, listeners: dict[str, list[ThincModel]]) -> None:
        self.source.listener_map = listeners  # spaCy sets {} before it looks for them

    @property
    def listeners(self) -> list[ThincModel]:
        """Listeners of all components."""
        return self.source.listeners

    @property
    def listening_components(self) -> list[str]:
        """Names of the components with listeners."""
        return list(self.listener_map)

    def add_listener(self, listener: ThincModel, component_name: str) -> None:
        """Add a listener of a later component."""
        listeners = self.listener_map.setdefault(component_name, [])
        if listener not in listeners:
            listeners.append(listener)

    def remove_listener(self, listener: ThincModel, component_name: str) -> bool:
        """Remove a listener; return whether it was known."""
        return self.source.remove_listener(listener, component_name)

    def find_listeners(self, component: Any) -> None:
        """Connect the listeners of a later component, and note who reads `doc.tensor`.

        Raises:
            ValueError: If one of them is spaCy's own, which reads vectors of another kind.
        """
        if not isinstance(getattr(component, "model", None), Model):
            return
        for node in component.model.walk():
            if isinstance(node, Tok2VecListener):
                if node.upstream_name == self.name:
                    raise ValueError(
                        f"Expected a spacy_elmo.ElmoListener.v1 with upstream = {self.name!r} in "
                        f"the model of component {component.name!r}, got a "
                        "spacy.Tok2VecListener.v1, which can read a 'tok2vec' component alone."
                    )
                self._tensor_readers.add(node)
            elif node.name == LISTENER_NAME and node.attrs["upstream"] in (ANY_UPSTREAM, self.name):
                earlier = node.attrs["link"].find()
                if earlier is not None:  # "*" means the last one before
                    earlier.remove_listener(node, component.name)
                node.attrs["link"].connect(self.source)
                self.add_listener(node, component.name)

    def list_parts(self, exclude: Iterable[str]) -> dict[str, Part]:
        """Return the parts to save: vocab, and model/ as `save_pretrained` writes it."""
        vocab = self.vocab
        return {
            "vocab": Part(
                partial(vocab.to_disk, exclude=exclude), partial(vocab.from_disk, exclude=exclude)
            ),
            "model": Part(self._write_model, self._read_model),
        }

    def _write_model(self, folder: Path) -> None:
        self.source.finish_batch()
        get_shim(self.model).write(folder)

    def _read_model(self, folder: Path) -> None:
        get_shim(self.model).read(folder)
        self.source.clear()

    # TrainablePipe is a C class of which Python would pickle no more than that.

    def __reduce__(self) -> tuple[Any, ...]:
        names = {"vocab", "model", "name", *vars(self)}
        state = {name: getattr(self, name) for name in names}
        return _unpickle, (type(self),), {**state, "_tensor_readers": list(self._tensor_readers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in {**state, "_tensor_readers": WeakSet(state["_tensor_readers"])}.items():
            setattr(self, name, value)
        register_extensions()


def _unpickle(kind: type[Elmo]) -> Elmo:
    return kind.__new__(kind)


def _find_device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(
            f"Expected device 'cpu', 'cuda:0' or the like, or None, got {name!r}."
        ) from error


def _gather(stream: Iterable[Doc], num_docs: int, num_words: int) -> Iterator[list[Doc]]:
    """Group docs: as many as go into both bounds, but at least one."""
    docs: list[Doc] = []
    for doc in stream:
        if docs and (len(docs) == num_docs or sum(map(len, docs)) + len(doc) > num_words):
            yield docs
            docs = []
        docs.append(doc)
    if docs:
        yield docs

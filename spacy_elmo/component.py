"""The `elmo` component: contextual vectors for the tokens of a doc."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias
from weakref import ref

import torch
from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.pipeline.tok2vec import Tok2Vec, Tok2VecListener
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
from .component_parts import Part, SavedComponent
from .extensions import put_vectors, register_extensions, set_layers, set_vectors
from .layers_and_gradients import LayerSource
from .listener import (
    ANY_UPSTREAM,
    LISTENER_NAME,
    MIX_NAME,
    let_residuals_find_width,
    replace_listener,
    replace_listener_config,
)
from .mix import MixSettings, mix_words
from .segments import Segment, SegmentBy

# Maximum number of words per batch of `pipe`: enough to find sentences of similar length.
WORDS_AT_ONCE = 16384

SetTensor: TypeAlias = bool | Literal["auto"]


class Prediction(NamedTuple):
    """Prediction of `Elmo` for a doc.

    Attributes:
        vectors: Mixed layers, shape `(tokens, width)`; zeros for white space.
        layers: Shape `(layers, tokens, width)`; None = not needed.
        segments: Word positions of each sentence that the biLM read.
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
class Elmo(SavedComponent, TrainablePipe):  # type: ignore[misc]  # an untyped C class
    """Set `doc.tensor` to the contextual vectors of the tokens, and store all layers on request.

    Args:
        nlp: Pipeline.
        name: Name of the component.
        model: Model of `spacy_elmo.ElmoModel.v1`.
        segment: Input of the biLM. `"sents"` = the doc's sentences; `"doc"` = the complete doc;
            `"auto"` = the sentences if the doc has them, from an earlier component or an
            earlier run, else the complete doc. Long inputs run in windows, with the same result.
        max_length: Maximum number of words; longer sentences are split into parts without shared
            context. Splitting is faster for long docs without sentences. None = never split.
        max_batch_tokens: Time steps per forward pass, to bound memory; None = 2048.
        set_tensor: Set `doc.tensor`. `"auto"` = set it unless a later component needs it for the
            vectors of a `tok2vec` component. With `"auto"`, `token._.elmo` is always available.
        store_layers: Set `doc._.elmo_layers`.
        store_weights: Save the weights with the pipeline. Otherwise the pipeline stores the model's
            name and revision; this revision must be available when the pipeline is loaded.
        frozen: Training does not change the biLM.
        device: Device of the biLM, such as `"cuda:0"`; None = device of the pipeline.
        mix: `layers`, `weights` and `gamma` of the mix; see `MixSettings`.

    Raises:
        ValueError: If a setting is invalid.
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
                'Expected model.dtype = "float32" or null where frozen = false: learned changes '
                f"would be rounded away in {shim.dtype}."
            )
        if not frozen:
            shim.dtype = "float32"  # even if the model's own weights have half precision
        self.vocab = nlp.vocab
        self._find_nlp: Callable[[], Language | None] = ref(nlp)
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
        # Names of later components that set `doc.tensor`, and of those whose listeners read it.
        self._tensor_setters: set[str] = set()
        self._tensor_readers: set[str] = set()
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
            batch_size: Maximum number of docs per batch; fewer if they are long.

        Returns:
            The docs in the same order.
        """
        for docs in _gather(stream, batch_size, WORDS_AT_ONCE):
            yield from super().pipe(docs, batch_size=len(docs))

    def predict(self, docs: Iterable[Doc]) -> list[Prediction]:
        """Compute the vectors of docs without changing the docs.

        Raises:
            ValueError: If `segment = "sents"` and a doc has no sentences, or the mix does not fit
                the biLM.
        """
        self.source.finish_batch()
        docs = list(docs)
        self.source.vocab = docs[0].vocab if docs else self.source.vocab
        segments = [find_doc_segments(self.model, doc) for doc in docs]
        ops: Any = self.model.ops
        config = get_shim(self.model).load().model.config
        keeps_layers = self.store_layers or bool(self.listener_map)
        predictions = [
            Prediction(
                ops.alloc((len(doc), config.output_size)),
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
        """Store the vectors according to the settings, and hold the layers for the listeners.

        Args:
            docs: Docs.
            predictions: Results of `predict`.
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
            put_vectors(doc, vectors, is_replaced=bool(self._tensor_setters))
        elif self.set_tensor == "auto":
            set_vectors(doc, vectors)

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
            get_examples: Not used, because the biLM is pretrained.
            nlp: Pipeline; a warning names its components that could read ELMo if none does.
            cache: `LayerCache` for training other components; None = a cache in memory.

        Raises:
            OSError: If the model does not exist.
            ValueError: If the model is not an ELMo, if the mix does not fit the model, or if the
                cache is not empty, or training changes the layers.
        """
        if cache is not None and (self.is_trainable or len(cache)):
            raise ValueError("Expected an empty cache, or none if frozen = false: layers change.")
        if self.is_trainable and get_shim(self.model).has_learned:
            warnings.warn(
                f"The biLM of {self.name!r} keeps its weights, with what it has learned: "
                "nlp.initialize resets only others. For a new start, make the pipeline again.",
                stacklevel=2,
            )
        self.source.cache = cache
        self.model.initialize()
        vocab = self.vocab if nlp is None else nlp.vocab  # of another pipeline if sourced
        self.predict([Doc(vocab, words=["x"], sent_starts=[True])])
        if nlp is not None and not self.listener_map:
            self._warn_of_unused_layers(nlp)

    def _warn_of_unused_layers(self, nlp: Language) -> None:
        """Warn if later models have a `tok2vec` without ELMo."""
        later = nlp.components[nlp.component_names.index(self.name) + 1 :]
        models: dict[str, Any] = {name: getattr(pipe, "model", None) for name, pipe in later}
        own = [
            name
            for name, model in models.items()
            if isinstance(model, Model)
            and name in nlp.pipe_names
            and model.has_ref("tok2vec")
            and all(node.name not in (MIX_NAME, LISTENER_NAME) for node in model.walk())
        ]
        if own:
            warnings.warn(
                f"No component reads {self.name!r}: {', '.join(own)} will be trained without ELMo. "
                "To let one read it, replace its section [components.NAME.model.tok2vec] by the "
                'line @architectures = "spacy_elmo.ElmoListener.v1".',
                stacklevel=2,
            )

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optimizer | None = None,
        losses: dict[str, float] | None = None,
    ) -> dict[str, float]:
        """Start a training batch; if the biLM is frozen, only store the sentences of the docs.

        Args:
            examples: Batch.
            drop: Not used, because the biLM has its own dropout.
            sgd: Optimizer; None = `finish_update` is called later.
            losses: Losses by component. This component's loss is the sum of its listeners' squared
                gradients, as in spaCy's `tok2vec`.

        Returns:
            The losses.
        """
        examples = list(examples)
        validate_examples(examples, "Elmo.update")
        losses = {} if losses is None else losses
        docs = [example.predicted for example in examples]
        self.source.start_batch(docs, losses, self.name)
        if sgd:  # spaCy's training loop passes False
            self.finish_update(sgd)
        return losses

    def finish_update(self, sgd: Optimizer) -> None:
        """Update the biLM when the listeners have sent their gradients.

        `nlp.update(sgd=...)` calls this method before the listeners have sent gradients. In this
        case, the biLM is updated at its next use.
        """
        self.source.take_step(sgd)

    def use_params(self, params: dict[tuple[int, str], Any]) -> Iterator[None]:
        """Use an optimizer's averages as weights until `nlp.use_params` ends this iterator."""
        self.source.finish_batch()
        with self.model.use_params(params):
            yield

    # spaCy calls these methods for the components after this one.

    @property
    def listener_map(self) -> dict[str, list[ThincModel]]:
        """Listeners by component."""
        return self.source.listener_map

    @listener_map.setter
    def listener_map(self, listeners: dict[str, list[ThincModel]]) -> None:
        # spaCy sets {}, and then calls `find_listeners` for all components that are not disabled.
        self.source.listener_map = listeners
        nlp = self._find_nlp()
        for names in (self._tensor_setters, self._tensor_readers):
            names.intersection_update(() if nlp is None else nlp.disabled)

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
        """Connect the ELMo listeners of a component; note what sets or reads `doc.tensor`.

        Raises:
            ValueError: If a `spacy.Tok2VecListener.v1` names this component as its upstream, or
                would read its vectors from `doc.tensor` instead of those of a `tok2vec` component.
        """
        if not isinstance(getattr(component, "model", None), Model):
            return
        if isinstance(component, Tok2Vec):
            self._tensor_setters.add(component.name)
        for node in component.model.walk():
            if isinstance(node, Tok2VecListener):
                if node.upstream_name == self.name:
                    raise ValueError(
                        f"Expected a spacy_elmo.ElmoListener.v1 with upstream = {self.name!r} in "
                        f"the model of component {component.name!r}, got a "
                        "spacy.Tok2VecListener.v1, which can read a 'tok2vec' component alone."
                    )
                if self.set_tensor is True and not self._tensor_setters:
                    raise ValueError(
                        f'Expected set_tensor = "auto", got true: component {component.name!r} '
                        f"needs doc.tensor for the vectors of a 'tok2vec' before {self.name!r}."
                    )
                self._tensor_readers.add(component.name)
            elif node.name == LISTENER_NAME and node.attrs["upstream"] in (ANY_UPSTREAM, self.name):
                earlier = node.attrs["link"].find()
                if earlier is not None:  # "*" refers to the last `elmo` before it
                    earlier.remove_listener(node, component.name)
                node.attrs["link"].connect(self.source)
                self.add_listener(node, component.name)
                let_residuals_find_width(component.model)

    def list_parts(self, exclude: Iterable[str]) -> dict[str, Part]:
        """Return the parts to save: the vocab, and the folder model/ with the biLM."""
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

    # Pickling: TrainablePipe is a C class, which keeps its own attributes outside `vars(self)`.

    def __reduce__(self) -> tuple[Any, ...]:
        self.source.finish_batch()
        names = {"vocab", "model", "name", *vars(self)} - {"_find_nlp"}
        return type(self).__new__, (type(self),), {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._find_nlp = lambda: None
        for name, value in state.items():
            setattr(self, name, value)
        register_extensions()


def _find_device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(
            f"Expected device 'cpu', 'cuda:0' or the like, or None, got {name!r}."
        ) from error


def _gather(stream: Iterable[Doc], num_docs: int, num_words: int) -> Iterator[list[Doc]]:
    """Group docs, up to a number of docs and of words; a group has at least one doc."""
    docs: list[Doc] = []
    waiting = 0  # words of these docs
    for doc in stream:
        if docs and (len(docs) == num_docs or waiting + len(doc) > num_words):
            yield docs
            docs, waiting = [], 0
        docs.append(doc)
        waiting += len(doc)
    if docs:
        yield docs

"""The `elmo_task` component: a task model of `hf_elmo.tasks` for docs."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from spacy import util
from spacy.language import Language
from spacy.parts_of_speech import IDS  # type: ignore[import-not-found]
from spacy.pipeline.textcat import textcat_score
from spacy.scorer import get_ner_prf
from spacy.tokens import Doc, Span
from spacy.training import Example
from thinc.api import Model, get_torch_default_device

from .architecture import DocLayers, ThincModel, get_shim
from .component_parts import Part, SavedComponent
from .extensions import register_roles
from .layers_and_gradients import LayerSource, SourceLink
from .listener import ANY_UPSTREAM, LISTENER_NAME
from .segments import find_segments
from .stored_bilm import LOADING, limit_fork_threads, no_progress_bars
from .task_results import ANNOTATORS, list_words

if TYPE_CHECKING:  # as in stored_bilm.py
    from torch import Tensor

    from hf_elmo.tasks.registry import TaskModel
    from hf_elmo.tasks.task_inputs import Compute, WordInputs

# Tasks that read two texts, so a pipeline of single docs cannot run them, and their methods.
PAIRED = {"entailment": "entail", "squad": "answer"}
# Settings that change a biLM's output, other than SPECIAL_CHAR_IDS and the shapes of weights.
BILM_FIELDS = (
    *("sentence_start_word_id", "sentence_end_word_id", "max_characters_per_token"),
    "char_activation",
    "forget_bias",
    "cell_clip",
    "projection_clip",
    "use_residual",
)


class Answer(NamedTuple):
    """Answer to a question.

    Attributes:
        span: Span of the paragraph.
        score: Product of the probabilities of the first and the last word.
    """

    span: Span
    score: float


@Language.factory(
    "elmo_task",
    assigns=["doc.ents", "doc.cats", "doc.spans", "doc._.srl"],
    default_config={"model": "", "predicate_pos": ["VERB"]},
)
class ElmoTask(SavedComponent):
    """Run a model that was trained with `python -m hf_elmo train`.

    Named entities are written to `doc.ents`, sentiment to `doc.cats` (the mean over the doc's
    sentences), semantic roles to `doc._.srl`, and coreference clusters to
    `doc.spans["coref_clusters_1"]` and so on. Entailment and question answering read two docs: see
    `entail` and `answer`.

    The model reads the doc's sentences if an earlier component has set them, else the complete doc
    as one sentence. If an earlier `elmo` component has a biLM with the same weights, the model uses
    its layers; otherwise it runs its own biLM.

    Args:
        nlp: Pipeline.
        name: Name of the component.
        model: Folder of the trained model, or its name on the Hugging Face Hub.
        predicate_pos: Parts of speech of predicates, for semantic roles; `doc.spans["predicates"]`
            overrides them.

    Raises:
        ValueError: If a part of speech is not one of spaCy's.
    """

    def __init__(self, nlp: Language, name: str, model: str, predicate_pos: list[str]) -> None:
        self.vocab = nlp.vocab
        self.name = name
        self.source_name = model
        self.predicate_pos = list(predicate_pos)
        unknown = set(predicate_pos) - IDS.keys()
        if unknown:
            raise ValueError(
                f"Expected predicate_pos such as VERB or AUX, as in token.pos_, got {unknown}."
            )
        self._device = get_torch_default_device()  # of this thread: others have their own default
        self._loaded: TaskModel | None = None
        self._compared: tuple[Any, bool] | None = None  # fingerprints, result of `_is_same`
        # An `elmo` component finds this model and connects the link.
        attrs = {"upstream": ANY_UPSTREAM, "link": SourceLink()}
        self.model: ThincModel = Model(LISTENER_NAME, _read_layers, attrs=attrs)
        register_roles()

    def load(self) -> "TaskModel":
        """Return the model; load it on first use.

        Raises:
            OSError: If the model does not exist.
            ValueError: If it is not a task model, or no model was named.
        """
        if not self.source_name and self._loaded is None:
            raise ValueError(
                f"Expected a trained model for component {self.name!r}: nlp.add_pipe("
                "'elmo_task', config={\"model\": FOLDER}). Train one: python -m hf_elmo train."
            )
        if self._loaded is None:
            with LOADING[os.getpid()]:
                self._loaded = self._loaded or _load_model(self.source_name, self._device)
        limit_fork_threads()
        return self._loaded

    def initialize(self, get_examples: Any = None, *, nlp: Language | None = None) -> None:
        """Load the model, which is trained already."""
        self.load()

    # Docs

    def __call__(self, doc: Doc) -> Doc:
        """Apply the component to a doc."""
        self._annotate([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Apply the component to a stream of docs.

        Args:
            stream: Any docs.
            batch_size: Docs per batch.

        Returns:
            The docs in the same order, without those of failed batches.
        """
        for docs in util.minibatch(stream, size=batch_size):
            try:
                self._annotate(docs)
            except Exception as error:  # noqa: BLE001 (the user's handler decides)
                self._handle_error(self.name, self, docs, error)
            else:
                yield from docs

    _handle_error: Callable[..., None] = staticmethod(util.raise_error)

    def set_error_handler(self, error_handler: Callable[..., None]) -> None:
        """Set the function that `pipe` calls for failed docs."""
        self._handle_error = error_handler

    def _annotate(self, docs: Sequence[Doc]) -> None:
        """Make examples from docs, predict, and write the results to the docs."""
        task = self.load().task
        if task.name in PAIRED:
            raise ValueError(
                f"Expected a task of single texts, got {task.name!r}, which reads two. Make docs "
                "with nlp.make_doc(text), and call the component's method "
                f"{PAIRED[task.name]}(pairs)."
            )
        annotator = ANNOTATORS[task.name]
        placed = [
            annotator.read(doc, find_segments(doc, "auto", None), self.predicate_pos)
            for doc in docs
        ]
        inputs = self._share_layers(docs)
        examples = [x.example for group in placed for x in group]
        found = iter(self._find(examples, inputs, annotator.finds))
        for doc, group in zip(docs, placed, strict=True):
            annotator.write(doc, group, [next(found) for _ in group])

    def _find(self, examples: Sequence[Any], inputs: "WordInputs", finds: str) -> list[Any]:
        from hf_elmo.tasks.task import predict

        task, model, _ = self.load()
        return predict(task, model, inputs, examples, find=getattr(model, finds))

    def score(self, examples: Iterable[Example], **settings: Any) -> dict[str, Any]:
        """Score entities or sentiment for `nlp.evaluate`, as spaCy's `ner` and `textcat` do.

        For the other tasks there is no score: use `python -m hf_elmo test`.
        """
        task, model, _ = self.load()
        if task.name == "ner":
            return get_ner_prf(examples)
        if task.name == "sentiment":
            return textcat_score(examples, **{**settings, "labels": model.config.label_names})
        return {}

    # Two texts

    def entail(self, pairs: Iterable[tuple[Doc, Doc]]) -> list[dict[str, float]]:
        """Predict whether the second text of a pair follows from the first.

        Args:
            pairs: Pairs of a premise and a hypothesis; each doc is read as one sentence.

        Returns:
            The probability of each label, for each pair.

        Raises:
            TypeError: If a text is not a doc.
            ValueError: If the model has another task, or a doc has no words.
        """
        from hf_elmo.tasks.readers import Pair

        inputs = self._check_is("entailment")
        examples = [Pair(_read_words(one), _read_words(other), "") for one, other in pairs]
        return self._find(examples, inputs, "rank")

    def answer(self, pairs: Iterable[tuple[Doc, Doc]]) -> list[Answer]:
        """Answer questions.

        Args:
            pairs: Pairs of a question and a paragraph; each doc is read as one sentence.

        Returns:
            The answers.

        Raises:
            TypeError: If a text is not a doc.
            ValueError: If the model has another task, or a doc has no words.
        """
        from hf_elmo.tasks.readers import Question

        inputs = self._check_is("squad")
        pairs = list(pairs)
        examples = [
            Question("", "", _read_words(text), [], _read_words(question), [], None)
            for question, text in pairs
        ]
        found = self._find(examples, inputs, "rank")
        answers = []
        for (_, text), (start, end, score) in zip(pairs, found, strict=True):
            (rows,) = find_segments(text, "doc", None)
            answers.append(Answer(text[rows[start] : rows[end] + 1], score))
        return answers

    def _check_is(self, name: str) -> "WordInputs":
        """Check the task; return inputs that run the model's own biLM."""
        task, _, inputs = self.load()
        if task.name != name:
            raise ValueError(f"Expected a model of the task {name}, got one of {task.name}.")
        return inputs

    # Layers of an `elmo` component

    def _share_layers(self, docs: Sequence[Doc]) -> "WordInputs":
        """Return inputs with an `elmo` component's layers if its biLM is equal, else own inputs."""
        _, model, inputs = self.load()
        source = self.model.attrs["link"].find()
        if source is None or any(doc.vocab is not source.vocab for doc in docs):
            return inputs  # no `elmo` component, or one of another pipeline
        if not self._is_same(source):
            for doc in docs:
                source.held.take(doc)  # drops the layers held for this component
            return inputs
        held: dict[tuple[str, ...], Tensor] = {}
        for doc, (layers, segments) in zip(docs, self.model.predict(docs), strict=True):
            for rows in segments:
                words = tuple(list_words(doc, rows))
                held[words] = torch.as_tensor(layers[:, rows], device=model.device)
        return inputs.with_layers(partial(_fetch_held, held))

    def _is_same(self, source: LayerSource) -> bool:
        """Return whether the biLM of an `elmo` component equals the biLM of the task model."""
        from hf_elmo.configuration_elmo import SPECIAL_CHAR_IDS
        from hf_elmo.weight_fingerprint import fingerprint_weights

        (_, model, inputs), shim = self.load(), get_shim(source.model)
        if not model.config.num_mixes or shim.quantization is not None:
            return False
        own, (other, tokenizer) = model.elmo, shim.load()
        fields = (*SPECIAL_CHAR_IDS, *BILM_FIELDS)
        if any(getattr(own.config, x) != getattr(other.config, x) for x in fields):
            return False
        marks = [fingerprint_weights(x.config, x.parameters()) for x in (own, other)]
        if None in marks or self._compared is None or self._compared[0] != marks:
            has_equal_ids = inputs.tokenizer.checksum() == tokenizer.checksum()
            self._compared = marks, has_equal_ids and _have_equal_weights(own, other)
        return self._compared[1]

    def list_parts(self, exclude: Iterable[str]) -> dict[str, Part]:
        """Return the part to save: the folder model/, as training writes it."""
        return {"model": Part(self._write, self._read)}

    def _read(self, folder: Path) -> None:
        self._loaded = _load_model(str(folder), self._device)

    def _write(self, folder: Path) -> None:
        _, model, inputs = self.load()
        with no_progress_bars():
            model.save_pretrained(folder)
        inputs.save(folder)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._device = get_torch_default_device()  # of this machine
        register_roles()


def _fetch_held(
    held: dict[tuple[str, ...], "Tensor"], sentences: Sequence[Sequence[str]], compute: "Compute"
) -> Iterator["Tensor"]:
    """Return the layers of sentences; compute the layers that are not held."""
    missing = [words for words in sentences if tuple(words) not in held]
    computed = iter(compute(missing)) if missing else iter(())
    for words in sentences:
        layers = held.get(tuple(words))
        yield next(computed) if layers is None else layers


def _load_model(name: str, device: torch.device) -> "TaskModel":
    from hf_elmo.tasks import load_task_model

    with no_progress_bars():
        loaded = load_task_model(name)
    cast(torch.nn.Module, loaded.model).to(device)
    return loaded


def _read_layers(
    model: ThincModel, docs: Sequence[Doc], is_train: bool
) -> tuple[list[DocLayers], Callable[[Any], Any]]:
    """Read the layers of docs from the linked `elmo` component; nothing is trained."""
    return model.attrs["link"].get().read(docs, is_train=False)[0], lambda gradients: []


def _have_equal_weights(own: torch.nn.Module, other: torch.nn.Module) -> bool:
    weights, others = own.state_dict(), other.state_dict()
    return weights.keys() == others.keys() and all(
        weight.dtype == others[name].dtype and torch.equal(weight.cpu(), others[name].cpu())
        for name, weight in weights.items()
    )


def _read_words(doc: Doc) -> list[str]:
    if not isinstance(doc, Doc):
        raise TypeError(f"Expected a doc, got {doc!r}: make one by nlp.make_doc(text).")
    segments = find_segments(doc, "doc", None)
    if not segments:
        raise ValueError(f"Expected a doc with words, got {doc.text!r}.")
    return list_words(doc, segments[0])

"""Pipelines of transformers for the task models: find labels or spans in texts."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

from transformers import Pipeline

from hf_elmo.word_splitting import WORD_PATTERN, split_text

from .labels import Span
from .modeling import ElmoTaskModel
from .readers import Document, Frame, LabelledSentence, Pair, Question, TaggedSentence
from .registry import find_task, make_inputs
from .task import predict


class Text(NamedTuple):
    """A text, its words, and each word's character offsets (start, exclusive end)."""

    text: str
    words: list[str]
    offsets: list[tuple[int, int]]

    def cut(self, start: int, end: int) -> dict[str, Any]:
        """Return the text of words `start` to `end` (inclusive), and its character offsets."""
        first, last = self.offsets[start][0], self.offsets[end][1]
        return {"word": self.text[first:last], "start": first, "end": last}

    def cut_span(self, span: Span) -> dict[str, Any]:
        """Return the label of a span, its text and its character offsets."""
        return {"entity_group": span.label, **self.cut(span.start, span.end)}


def read_text(value: Any, word_pattern: str = WORD_PATTERN) -> Text:
    """Read a text: split a string into words, or join a list of words by spaces.

    Raises:
        TypeError: If the value is neither a string nor a list of words.
    """
    if isinstance(value, str):
        return Text(value, *split_text(value, word_pattern))
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise TypeError(f"Expected a text or a list of words, got {value!r}.")
    words, offsets, place = list(value), [], 0
    for word in words:
        offsets.append((place, place + len(word)))
        place += len(word) + 1
    return Text(" ".join(words), words, offsets)


class ElmoTaskPipeline(Pipeline):
    """Base class of all task pipelines; an input is a string or a dictionary.

    A list of words can replace a text: `{"text": ["A", "cat"]}`.
    """

    _load_tokenizer: Any = True
    finds: str = "predict"  # method of the model to call
    keys: tuple[str, ...] = ("text",)
    options: tuple[str, ...] = ()  # that a call accepts

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.task_model = cast(ElmoTaskModel, self.model).train(False)
        self.elmo_task = find_task(self.task_model.config)
        tokenizer: Any = self.tokenizer
        self.inputs = make_inputs(self.task_model, tokenizer)

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Save the model, its tokenizer and the words of its static vectors."""
        super().save_pretrained(save_directory, **kwargs)
        self.inputs.save(Path(save_directory))

    def _sanitize_parameters(self, **options: Any) -> tuple[dict[str, Any], ...]:
        unknown = sorted(options.keys() - set(self.options))
        if unknown:
            known = ", ".join(self.options) or "none"
            raise TypeError(f"Expected options of this pipeline ({known}), got {unknown[0]}.")
        return {}, {}, options

    def _ensure_tensor_on_device(self, inputs: Any, device: Any) -> Any:
        return inputs  # no tensors yet: `predict` makes them

    def preprocess(self, input_: Any, **_: Any) -> dict[str, Any]:
        """Read an input; the result has the model's "examples": one, several or none."""
        given = {"text": input_} if isinstance(input_, str) else input_
        if not isinstance(given, dict) or not set(self.keys) <= given.keys():
            raise TypeError(f"Expected a dictionary with {', '.join(self.keys)}, got {input_!r}.")
        return self.read(given)

    def read(self, given: dict[str, Any]) -> dict[str, Any]:
        """Read an input that is a dictionary."""
        raise NotImplementedError

    def read_words(self, value: Any) -> Text:
        """Read a text by the tokenizer's `word_pattern`; see `read_text`."""
        tokenizer: Any = self.tokenizer
        return read_text(value, tokenizer.word_pattern)

    def _forward(self, input_tensors: dict[str, Any], **_: Any) -> Any:
        is_batch = isinstance(input_tensors["examples"], list)
        groups = input_tensors["examples"] if is_batch else [input_tensors["examples"]]
        found = iter(
            predict(
                self.elmo_task,
                self.task_model,
                self.inputs,
                [example for group in groups for example in group],
                find=getattr(self.model, self.finds),
            )
        )
        results = [tuple(next(found) for _ in group) for group in groups]
        return {**input_tensors, "found": results if is_batch else results[0]}


class ElmoNerPipeline(ElmoTaskPipeline):
    """Find named entities: `pipe("Anna went to Rome.")`."""

    def read(self, given: dict[str, Any]) -> dict[str, Any]:
        _refuse_pair(given)
        text = self.read_words(given["text"])
        return {"examples": (TaggedSentence(text.words, []),), "text": text}

    def postprocess(self, model_outputs: Any, **_: Any) -> Any:
        """List the entities, each with its `entity_group`, `word`, `start` and `end`."""
        return [model_outputs["text"].cut_span(span) for span in model_outputs["found"][0]]


class ElmoSrlPipeline(ElmoTaskPipeline):
    """Find the roles of predicates: `pipe({"text": "He sold it.", "predicates": [3]})`.

    Give a predicate by the offset of its first character, or by its position in a list of words.
    """

    keys = ("text", "predicates")

    def read(self, given: dict[str, Any]) -> dict[str, Any]:
        text = self.read_words(given["text"])
        places = [start for start, _ in text.offsets]
        if not isinstance(given["text"], str):
            places = list(range(len(text.words)))
        chosen = given["predicates"]
        if isinstance(chosen, Iterable) and not isinstance(chosen, str):
            chosen = list(chosen)  # an iterator can be read only once
        if not isinstance(chosen, list) or not set(chosen) <= set(places):
            raise ValueError(
                "Expected a list of predicates, first characters of words or numbers of given "
                f"words: some of {places}, got {chosen!r}."
            )
        frames = (Frame(text.words, places.index(place), []) for place in chosen)
        return {"examples": tuple(frames), "text": text}

    def postprocess(self, model_outputs: Any, **_: Any) -> Any:
        """List the predicates, each with its `word`, `start`, `end` and `roles`."""
        text = model_outputs["text"]
        return [
            {
                **text.cut(frame.predicate, frame.predicate),
                "roles": [text.cut_span(span) for span in found],
            }
            for frame, found in zip(model_outputs["examples"], model_outputs["found"], strict=True)
        ]


class ElmoTextClassificationPipeline(ElmoTaskPipeline):
    """Label texts: `pipe("What a film!")`, or `pipe({"text": ..., "text_pair": ...})` for pairs."""

    finds = "rank"
    options = ("top_k",)

    def read(self, given: dict[str, Any]) -> dict[str, Any]:
        words = self.read_words(given["text"]).words
        if not self.elmo_task.has_several_sentences:
            _refuse_pair(given)
            return {"examples": (LabelledSentence(words, ""),)}
        if "text_pair" not in given:
            raise TypeError(f"Expected a dictionary with text and text_pair, got {given!r}.")
        return {"examples": (Pair(words, self.read_words(given["text_pair"]).words, ""),)}

    def postprocess(self, model_outputs: Any, **options: Any) -> Any:
        """Return the best `label` and its `score`, or a list of the best `top_k` (None = all)."""
        (labels,) = model_outputs["found"]
        top_k = options.get("top_k", 1)
        if top_k is not None and top_k < 1:
            raise ValueError(f"Expected top_k above 0, or None for all labels, got {top_k}.")
        ranked = sorted(labels.items(), key=lambda item: -item[1])
        results = [{"label": label, "score": score} for label, score in ranked[:top_k]]
        return results[0] if top_k == 1 else results


class ElmoQuestionAnsweringPipeline(ElmoTaskPipeline):
    """Answer questions: `pipe({"question": "Who sat?", "context": "The cat sat."})`."""

    finds = "rank"
    keys = ("question", "context")

    def read(self, given: dict[str, Any]) -> dict[str, Any]:
        # The words of questions and paragraphs are split as in training.
        text, question = read_text(given["context"]), read_text(given["question"])
        if not text.words or not question.words:
            raise ValueError(f"Expected a question and a context with words, got {given!r}.")
        example = Question("", *text, question.words, [], None)
        return {"examples": (example,), "text": text}

    def postprocess(self, model_outputs: Any, **_: Any) -> Any:
        """Return the `answer`, its `start` and `end`, and its `score`."""
        ((start, end, score),) = model_outputs["found"]
        cut = model_outputs["text"].cut(start, end)
        return {"score": score, "start": cut["start"], "end": cut["end"], "answer": cut["word"]}


class ElmoCorefPipeline(ElmoTaskPipeline):
    """Find coreferent mentions: `pipe({"sentences": ["Anna came.", "She sat."]})`."""

    keys = ("sentences",)

    def read(self, given: dict[str, Any]) -> dict[str, Any]:
        if isinstance(given["sentences"], str):
            raise TypeError("Expected sentences as a list of texts, got a string.")
        texts = [self.read_words(sentence) for sentence in given["sentences"]]
        sentences = [text.words for text in texts if text.words]
        documents = (Document("", sentences, []),) if sentences else ()
        return {"examples": documents, "texts": texts}

    def postprocess(self, model_outputs: Any, **_: Any) -> Any:
        """List the clusters of mentions: `word`, `sentence`, `start` and `end` in the sentence."""
        texts = model_outputs["texts"]
        places = [(row, word) for row, text in enumerate(texts) for word in range(len(text.words))]

        def cut(start: int, end: int) -> dict[str, Any]:
            (row, first), (_, last) = places[start], places[end]
            return {**texts[row].cut(first, last), "sentence": row}

        return [
            [cut(*mention) for mention in cluster]
            for clusters in model_outputs["found"]
            for cluster in clusters
        ]


def _refuse_pair(given: dict[str, Any]) -> None:
    if given.get("text_pair") is not None:
        raise TypeError(f"Expected one text, because the task labels texts, got {given!r}.")


# The keys are model types of configurations, and names of tasks for `pipeline`.
PIPELINES: dict[str, type[ElmoTaskPipeline]] = {
    "elmo-ner": ElmoNerPipeline,
    "elmo-srl": ElmoSrlPipeline,
    "elmo-sentiment": ElmoTextClassificationPipeline,
    "elmo-entailment": ElmoTextClassificationPipeline,
    "elmo-squad": ElmoQuestionAnsweringPipeline,
    "elmo-coref": ElmoCorefPipeline,
}

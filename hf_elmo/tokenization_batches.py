"""Sentences as batches of rows: input checks, padding, and the word of each row."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from transformers import BatchEncoding, TensorType
from transformers.tokenization_python import PythonBackend
from transformers.utils.generic import PaddingStrategy

from .character_ids import Array, describe
from .word_splitting import Span, split_text

SPECIAL_MASK = "special_tokens_mask"
NO_PAIRS = (
    "A biLM reads one text at a time, so this is no model for pairs (cross-encoders, zero-shot "
    "classification): `python -m hf_elmo train entailment` trains one over it, and "
    'pipeline("elmo-entailment") runs that.'
)
# Arguments that `__call__` of the base class may pass on; some have no meaning here.
CALL_ARGUMENTS = {*inspect.signature(PythonBackend.__call__).parameters, "split_special_tokens"}


@dataclass(frozen=True, slots=True)
class ElmoEncoding:
    """One sentence's words and rows, for `BatchEncoding.word_ids()` and similar methods.

    Every word is one row, so a row is both the "token" and the "word" of `transformers`.

    Attributes:
        words: The words that have a row.
        spans: Start and end of each word in the text; None if the input was a list of words.
        first_word: Number of words that truncation cut off before the first kept word.
        num_before: Number of padding rows before the words.
        num_after: Number of padding rows after the words.
        n_sequences: Always 1: there are no pairs.
    """

    words: Sequence[str]
    spans: Sequence[Span] | None
    first_word: int = 0
    num_before: int = 0
    num_after: int = 0
    n_sequences: int = 1

    def _pad(self, values: Iterable[Any], padding: Any) -> list[Any]:
        return [padding] * self.num_before + list(values) + [padding] * self.num_after

    @property
    def tokens(self) -> list[str | None]:
        """The word of each row, None for padding."""
        return self._pad(self.words, None)

    @property
    def offsets(self) -> list[Span]:
        """The span of each row's word, (0, 0) for padding."""
        return self._pad(map(self._span, range(len(self.words))), (0, 0))

    @property
    def word_ids(self) -> list[int | None]:
        """The index in the sentence of each row's word, None for padding."""
        return self._pad(range(self.first_word, self.first_word + len(self.words)), None)

    @property
    def sequence_ids(self) -> list[int | None]:
        """0 for each word, None for padding."""
        return self._pad([0] * len(self.words), None)

    def pad(self, width: int, is_left: bool) -> Self:
        """Pad the sentence to `width` rows, on the left if `is_left`, else on the right."""
        surplus = width - len(self.words)
        before, after = (surplus, 0) if is_left else (0, surplus)
        return replace(self, num_before=before, num_after=after)

    def truncate(self, max_length: int, is_left: bool) -> Self:
        """Keep at most `max_length` words: the last ones if `is_left`, else the first ones."""
        surplus = len(self.words) - max_length
        if surplus <= 0:
            return self
        kept = slice(surplus, None) if is_left else slice(max_length)
        spans = None if self.spans is None else self.spans[kept]
        return replace(self, words=self.words[kept], spans=spans, first_word=kept.start or 0)

    def token_to_sequence(self, row: int) -> int | None:
        """Return 0 for the row of a word, None for padding."""
        return None if self._find_place(row) is None else 0

    def token_to_word(self, row: int) -> int | None:
        """Return the index in the sentence of a row's word, None for padding."""
        place = self._find_place(row)
        return None if place is None else self.first_word + place

    def token_to_chars(self, row: int) -> Span | None:
        """Return the span of a row's word, None for padding."""
        place = self._find_place(row)
        return None if place is None else self._span(place)

    def word_to_tokens(self, word: int, sequence: int = 0) -> Span | None:
        """Return the row of a word, as a span of one row; None if the word was cut off."""
        place = word - self.first_word
        row = place + self.num_before
        return (row, row + 1) if 0 <= place < len(self.words) else None

    def word_to_chars(self, word: int, sequence: int = 0) -> Span:
        """Return the span of a word."""
        place = word - self.first_word
        if not 0 <= place < len(self.words):
            raise ValueError(f"Expected a word that has a row, got word {word}.")
        return self._span(place)

    def char_to_token(self, character: int, sequence: int = 0) -> int | None:
        """Return the row of the word that contains a character of the text, if any."""
        for row, (start, end) in enumerate(self.offsets):
            if start <= character < end:
                return row
        return None

    def char_to_word(self, character: int, sequence: int = 0) -> int | None:
        """Return the index in the sentence of the word that contains a character, if any."""
        row = self.char_to_token(character)
        return None if row is None else self.token_to_word(row)

    # The lookups build no list of all rows, because callers look up one row after the other.

    def _find_place(self, row: int) -> int | None:
        """Return the index in `words` of a row's word, None for padding."""
        rows = range(self.num_before + len(self.words) + self.num_after)
        place = rows[row] - self.num_before  # a negative row counts from the end
        return place if 0 <= place < len(self.words) else None

    def _span(self, place: int) -> Span:
        return (0, len(self.words[place])) if self.spans is None else self.spans[place]


def find_width(
    lengths: Sequence[int],
    strategy: PaddingStrategy,
    max_length: int | None,
    multiple: int | None,
    *,
    is_tensor: bool,
) -> int | None:
    """Find the number of words to which sentences are padded; None = no padding."""
    if max_length is not None and max_length < 0:
        raise ValueError(f"Expected max_length of at least 0 words, got {max_length}.")
    if multiple is not None and multiple < 1:
        raise ValueError(f"Expected pad_to_multiple_of of at least 1 word, got {multiple}.")
    longest = max(lengths, default=0)
    if strategy == PaddingStrategy.DO_NOT_PAD:
        if is_tensor and longest != min(lengths, default=0):
            raise ValueError(
                f"Expected sentences of one length for a tensor, got {min(lengths)} to {longest} "
                "words. Pass padding=True."
            )
        return longest if is_tensor else None
    width = longest if strategy == PaddingStrategy.LONGEST or max_length is None else max_length
    if multiple is not None:
        width = -(-width // multiple) * multiple
    if longest > width:
        raise ValueError(
            f"Expected sentences of at most max_length {width} words, got one of {longest}. Pass "
            "truncation=True to cut it."
        )
    return width


def check_options(text_pair: object, options: Mapping[str, Any]) -> None:
    """Refuse pairs and options that have no meaning here."""
    if text_pair is not None:
        raise ValueError(f"Expected one text, got a pair. {NO_PAIRS}")
    unexpected = sorted(options.keys() - CALL_ARGUMENTS)
    if unexpected:
        raise TypeError(f"Expected arguments of a tokenizer, got {unexpected}.")
    for name in ("stride", "return_overflowing_tokens", "return_token_type_ids"):
        if options.get(name):
            raise ValueError(f"Expected no {name}, a biLM has no use for it; got {options[name]}.")


def read_sentences(
    text: Any, is_split_into_words: bool, word_pattern: str
) -> tuple[bool, list[ElmoEncoding]]:
    """Check the input; return whether it is a batch, and the list of its sentences."""
    if not is_split_into_words:
        is_batch = not isinstance(text, str)
        texts = text if is_batch else [text]
        _check_texts(texts)
        return is_batch, [ElmoEncoding(*split_text(text, word_pattern)) for text in texts]
    _check_list(text, "words or of such lists, as is_split_into_words is set")
    is_batch = len(text) > 0 and not isinstance(text[0], str)
    sentences = text if is_batch else [text]
    for number, words in enumerate(sentences):
        check_words(words, number)
    return is_batch, [ElmoEncoding(list(words), None) for words in sentences]


def _check_list(value: object, content: str) -> None:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | np.ndarray):
        raise TypeError(f"Expected a list of {content}; got {describe(value)}.")


def _check_texts(texts: Any) -> None:
    _check_list(texts, "texts, or one text")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            advice = "For lists of words, pass is_split_into_words=True."
            raise TypeError(
                f"Expected every text to be a str, got {describe(text)} as text {number}. "
                f"{NO_PAIRS if _is_pair(text) else advice}"
            )


def _is_pair(value: object) -> bool:
    """Return whether a value is a pair of texts: two strings, at least one with a space inside."""
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(isinstance(text, str) for text in value)
        and any(" " in text.strip() for text in value)
    )


def check_words(words: Any, number: int) -> None:
    """Check that a sentence is a list of strings; `number` is its index, for the error message."""
    _check_list(words, f"words as sentence {number}")
    if all(issubclass(kind, str) for kind in set(map(type, words))):  # faster than word by word
        return
    place = next(place for place, word in enumerate(words) if not isinstance(word, str))
    raise TypeError(
        f"Expected every word to be a str, got {describe(words[place])} as word {place} of "
        f"sentence {number}."
    )


def read_features(encoded: Any, main: str, num_axes: int) -> tuple[dict[str, Any], bool]:
    """Check encoded sentences; return lists of each feature, and whether the input is a batch.

    Each list has one item per sentence. For one sentence, the feature `main` has `num_axes` axes.
    """
    is_list = not isinstance(encoded, Mapping)
    first = encoded[0] if is_list and len(encoded) > 0 else encoded
    if not isinstance(first, Mapping) or main not in first:
        raise ValueError(
            f"Expected encoded sentences with {main} to pad, got "
            f"{list(first) if isinstance(first, Mapping) else type(first).__name__}."
        )
    if is_list:
        return {name: [item[name] for item in encoded] for name in first}, True
    if count_axes(first[main]) > num_axes:
        return dict(first), True
    return {name: [value] for name, value in first.items()}, False


def find_words(ids: Any) -> list[int]:
    """Mark the words of a sentence: 1 = a word, 0 = padding, which is zero in all cells."""
    return [int(np.any(np.asarray(row))) for row in ids]


def is_left_side(side: str) -> bool:
    """Return whether the padding is before the words.

    Raises:
        ValueError: If the side is neither "left" nor "right".
    """
    if side not in ("left", "right"):
        raise ValueError(f"Expected padding_side 'left' or 'right', got {side!r}.")
    return side == "left"


def lay_out(
    flat: Array, lengths: Sequence[int], width: int | None, is_left: bool
) -> Array | list[Array]:
    """Arrange the values of all words, shape `(words,)`, by sentence.

    Returns:
        Shape `(batch, width)` with 0 as padding; without a width, an array for each sentence.
    """
    if width is None:
        return np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []
    cells, counts = np.arange(width), np.array(lengths, np.int64)[:, None]
    is_word = cells >= width - counts if is_left else cells < counts
    rows = np.zeros(is_word.shape, np.int64)
    rows[is_word] = flat
    return rows


def join_rows(name: str, sentences: Sequence[Any], lengths: Sequence[int], num_cells: int) -> Array:
    """Join the values of one input, all sentences, in one array; its first row is padding."""
    tail = (num_cells,) if name == "input_ids" else ()
    arrays = [np.full((1, *tail), int(name == SPECIAL_MASK), np.int64)]
    for sentence, length in zip(sentences, lengths, strict=True):
        array = np.asarray(sentence, np.int64)
        if length > 0 and array.shape != (length, *tail):
            raise ValueError(
                f"Expected {name} of shape {(length, *tail)} for a sentence of {length} words, "
                f"got {array.shape}."
            )
        arrays.append(array.reshape(length, *tail))
    return np.concatenate(arrays)


def take(tables: Mapping[str, Array], rows: Array | list[Array]) -> dict[str, Any]:
    """Select rows of each table: one array, or a list of arrays if `rows` is a list of arrays."""
    if isinstance(rows, np.ndarray):
        return {name: table[rows] for name, table in tables.items()}
    return {name: [table[row] for row in rows] for name, table in tables.items()}


def count_axes(ids: Any) -> int:
    """Count the axes of an array or of nested lists, by their first item that is not empty."""
    if not isinstance(ids, list | tuple):
        return int(getattr(ids, "ndim", 0))
    first = next((item for item in ids if not isinstance(item, list | tuple) or item), ())
    return 1 + (count_axes(first) if len(ids) else 0)


def make_batch(
    data: dict[str, Any],
    return_tensors: str | TensorType | None,
    encodings: Any = None,
) -> BatchEncoding:
    """Make the `BatchEncoding` that tokenizers return."""
    # PyTorch takes over the memory of the arrays; the base class would copy them cell by cell.
    if return_tensors is not None and TensorType(return_tensors) == TensorType.PYTORCH:
        data = {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in data.items()
        }
    # `BatchEncoding` calls the same methods of an ElmoEncoding as of a Rust tokenizer's encoding.
    return BatchEncoding(data, encodings, return_tensors)

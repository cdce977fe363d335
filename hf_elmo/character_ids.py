"""Words as rows of ids: how a word is spelled, and where the rows of a batch come from."""

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import regex
import torch
from transformers import BatchEncoding, TensorType
from transformers.tokenization_python import PythonBackend
from transformers.utils.generic import PaddingStrategy

PADDING_OFFSET = 1  # id 0 means "no token", so every id of an old format is shifted by one
NUM_WORD_MARKS = 2  # cells of a word that hold no character: its start and its end
NUM_BYTES = 256
SPECIAL_MASK = "special_tokens_mask"
# Words of a text: a number with its inner points and commas; an apostrophe after a word with the
# letters behind it ("don't" = "don", "'t"); a run of letters, marks, digits and underscores; any
# other visible character alone, with what combines with it (\X, so that a flag is one word).
WORD_PATTERN = r"\d+(?:[.,]\d+)+|(?<=\w)['’]\w+|\w+|(?!\s)\X"
REPLACEMENT = "\ufffd"  # stands for a character that was unknown, or cut within its bytes

NO_PAIRS = (
    "A biLM reads one text at a time, so this is no model for pairs (cross-encoders, zero-shot "
    "classification): `python -m hf_elmo train entailment` trains one over it."
)
# What `__call__` of the base class may pass on, whether it means something here or not.
CALL_ARGUMENTS = {*inspect.signature(PythonBackend.__call__).parameters, "split_special_tokens"}

Array: TypeAlias = npt.NDArray[np.int64]
Span: TypeAlias = tuple[int, int]


def index(vocab: Sequence[str]) -> dict[str, int]:
    """Map each entry of a vocabulary to its id, from 1 on; the last of equal entries counts."""
    return {entry: row for row, entry in enumerate(vocab, PADDING_OFFSET)}


class Spelling:
    """How a word is spelled in ids: `[word start, characters, word end, padding characters]`.

    Args:
        vocab: What the character ids from 1 on stand for; None = the bytes of UTF-8.
        unknown: The entry that stands for what the vocabulary does not list.
        num_cells: Cells of a word, its start and end marks included.
        marks: Ids of a word's first cell, of that after its last character, and of all after that.
    """

    def __init__(
        self,
        vocab: Sequence[str] | None,
        unknown: str,
        num_cells: int,
        marks: tuple[int, int, int],
    ) -> None:
        self.vocab = vocab
        self.unknown = unknown
        self.num_cells = num_cells
        self.marks = marks
        if vocab is not None:
            ids = index(vocab)
            points = [ord(entry) for entry in ids if len(entry) == 1]
            # Of each code point; the last cell is for all that come after.
            self._ids = np.full(max(points, default=0) + 2, ids[unknown], np.int64)
            self._ids[points] = [ids[chr(point)] for point in points]

    def spell(self, words: Sequence[str]) -> Array:
        """Spell words, shape `(1 + words, characters)`; row 0 is no word, all zeros."""
        num_characters = self.num_cells - NUM_WORD_MARKS
        spelled: list[bytes] | list[str]
        if self.vocab is None:
            spelled = [word.encode("utf-8", "ignore")[:num_characters] for word in words]
            ids = np.frombuffer(b"".join(spelled), np.uint8).astype(np.int64) + PADDING_OFFSET
        else:
            spelled = [word[:num_characters] for word in words]
            points = np.frombuffer("".join(spelled).encode("utf-32-le", "surrogatepass"), "<u4")
            ids = self._ids[np.minimum(points, len(self._ids) - 1)]

        word_start_id, word_end_id, padding_id = self.marks
        table = np.full((PADDING_OFFSET + len(words), self.num_cells), padding_id, np.int64)
        table[0] = 0
        lengths = np.fromiter(map(len, spelled), np.int64, len(spelled))
        table[1:, 0] = word_start_id
        table[1:, 1:-1][np.arange(num_characters) < lengths[:, None]] = ids
        table[np.arange(1, len(table)), lengths + 1] = word_end_id
        return table

    def spell_boundary(self, char_id: int) -> Array:
        """Spell a sentence's boundary, which has an id of its own, shape `(characters,)`."""
        word_start_id, word_end_id, padding_id = self.marks
        row = [word_start_id, char_id, word_end_id]
        return np.array(row + [padding_id] * (self.num_cells - len(row)), np.int64)

    def read(self, row: Array) -> str:
        """Read a word off its row, as far as it was not cut."""
        ids = row[~np.isin(row, self.marks)].tolist()
        if self.vocab is None:
            codes = [char_id - PADDING_OFFSET for char_id in ids if 0 < char_id <= NUM_BYTES]
            return bytes(codes).decode("utf-8", "replace")
        entries = [self.vocab[char_id - PADDING_OFFSET] for char_id in ids if char_id > 0]
        return "".join(REPLACEMENT if entry == self.unknown else entry for entry in entries)


@dataclass(frozen=True, slots=True)
class ElmoEncoding:
    """Where the rows of one sentence come from: what `BatchEncoding.word_ids()` and its kin ask.

    Every word is one row, so a row is both the "token" and the "word" of `transformers`.

    Attributes:
        words: The words that have a row.
        spans: Start and end of each in the text; None if the words were given, each its own text.
        first_word: Number of words that truncation cut off before the first.
        num_before: Padding rows before the words.
        num_after: Padding rows after the words.
        n_sequences: Always 1, there are no pairs.
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
        """The span of each row, (0, 0) for padding."""
        spans = [(0, len(word)) for word in self.words] if self.spans is None else self.spans
        return self._pad(spans, (0, 0))

    @property
    def word_ids(self) -> list[int | None]:
        """The position in the sentence of each row's word, None for padding."""
        return self._pad(range(self.first_word, self.first_word + len(self.words)), None)

    @property
    def sequence_ids(self) -> list[int | None]:
        """0 for each word, None for padding."""
        return self._pad([0] * len(self.words), None)

    def pad(self, width: int, is_left: bool) -> Self:
        """Place the words in that many rows, at their right or their left end."""
        surplus = width - len(self.words)
        before, after = (surplus, 0) if is_left else (0, surplus)
        return type(self)(self.words, self.spans, self.first_word, before, after)

    def truncate(self, max_length: int, is_left: bool) -> Self:
        """Keep that many words, those at the end if `is_left`."""
        surplus = len(self.words) - max_length
        if surplus <= 0:
            return self
        kept = slice(surplus, None) if is_left else slice(max_length)
        spans = None if self.spans is None else self.spans[kept]
        return type(self)(self.words[kept], spans, first_word=kept.start or 0)

    def token_to_sequence(self, row: int) -> int | None:
        """Return 0 for the row of a word."""
        return self.sequence_ids[row]

    def token_to_word(self, row: int) -> int | None:
        """Return the position in the sentence of a row's word."""
        return self.word_ids[row]

    def token_to_chars(self, row: int) -> Span | None:
        """Return the span of a row's word."""
        return None if self.word_ids[row] is None else self.offsets[row]

    def word_to_tokens(self, word: int, sequence: int = 0) -> Span | None:
        """Return the row of a word, as a span of one row."""
        row = word - self.first_word + self.num_before
        return (row, row + 1) if word in self.word_ids else None

    def word_to_chars(self, word: int, sequence: int = 0) -> Span:
        """Return the span of a word."""
        return self.offsets[self.word_ids.index(word)]

    def char_to_token(self, character: int, sequence: int = 0) -> int | None:
        """Return the row of the word to which a character of the text belongs."""
        for row, (start, end) in enumerate(self.offsets):
            if start <= character < end:
                return row
        return None

    def char_to_word(self, character: int, sequence: int = 0) -> int | None:
        """Return the position in the sentence of the word to which a character belongs."""
        row = self.char_to_token(character)
        return None if row is None else self.word_ids[row]


def split_text(text: str, word_pattern: str = WORD_PATTERN) -> tuple[list[str], list[Span]]:
    """Find the words of a text, and the characters where each starts and ends."""
    spans = [match.span() for match in regex.finditer(word_pattern, text)]
    spans = [(start, end) for start, end in spans if start < end]
    return [text[start:end] for start, end in spans], spans


def check_pattern(word_pattern: str) -> None:
    """Refuse what is no regular expression."""
    try:
        regex.compile(word_pattern)
    except regex.error as error:
        raise ValueError(
            f"Expected a regular expression as word_pattern, got {word_pattern!r}: {error}."
        ) from error


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


def check_counts(max_length: int | None, multiple: int | None) -> None:
    """Refuse counts out of range."""
    if max_length is not None and max_length < 0:
        raise ValueError(f"Expected max_length of at least 0 words, got {max_length}.")
    if multiple is not None and multiple < 1:
        raise ValueError(f"Expected pad_to_multiple_of of at least 1 word, got {multiple}.")


def check_list(value: object, content: str) -> None:
    """Refuse what is no list."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | np.ndarray):
        raise TypeError(f"Expected a list of {content}; got {describe(value)}.")


def check_texts(texts: Any) -> None:
    """Refuse what is no list of texts."""
    check_list(texts, "texts, or one text")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            advice = "For lists of words, pass is_split_into_words=True."
            raise TypeError(
                f"Expected every text to be a str, got {describe(text)} as text {number}. "
                f"{NO_PAIRS if _is_pair(text) else advice}"
            )


def _is_pair(value: object) -> bool:
    """Whether these are two texts; words have no spaces within."""
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(isinstance(text, str) for text in value)
        and any(" " in text.strip() for text in value)
    )


def check_sentences(sentences: Any) -> None:
    """Refuse what is no list of lists of words."""
    for number, words in enumerate(sentences):
        check_list(words, f"words as sentence {number}")
        if all(issubclass(kind, str) for kind in set(map(type, words))):
            continue
        place = next(place for place, word in enumerate(words) if not isinstance(word, str))
        raise TypeError(
            f"Expected every word to be a str, got {describe(words[place])} as word {place} of "
            f"sentence {number}."
        )


def describe(value: object) -> str:
    """Return a value as error messages show it, with its type."""
    text = repr(value)
    return f"{text if len(text) < 50 else text[:50] + '...'} ({type(value).__name__})"


def find_width(
    lengths: Sequence[int],
    strategy: PaddingStrategy,
    max_length: int | None,
    multiple: int | None,
) -> int | None:
    """Find to how many words sentences are padded; None = not at all."""
    if strategy == PaddingStrategy.DO_NOT_PAD:
        return None
    longest = max(lengths, default=0)
    width = longest if strategy == PaddingStrategy.LONGEST or max_length is None else max_length
    if multiple is not None:
        width = -(-width // multiple) * multiple
    if longest > width:
        raise ValueError(
            f"Expected sentences of at most max_length {width} words, got one of {longest}. Pass "
            "truncation=True to cut it."
        )
    return width


def find_common_length(lengths: Sequence[int]) -> int:
    """Return the one length that sentences have, where they must have one."""
    if len(set(lengths)) > 1:
        raise ValueError(
            f"Expected sentences of one length for a tensor, got {min(lengths)} to {max(lengths)} "
            "words. Pass padding=True."
        )
    return max(lengths, default=0)


def lay_out(
    flat: Array, lengths: Sequence[int], width: int | None, is_left: bool
) -> Array | list[Array]:
    """Lay the words of all sentences out by sentence.

    Args:
        flat: The words of all sentences, shape `(words,)`.
        lengths: Words of each sentence.
        width: Words of each padded sentence; None = no padding.
        is_left: Whether padding stands on the left.

    Returns:
        Shape `(batch, width)` with 0 as padding, or without padding an array for each sentence.
    """
    if width is None:
        return np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []
    cells, counts = np.arange(width), np.array(lengths, np.int64)[:, None]
    is_word = cells >= width - counts if is_left else cells < counts
    rows = np.zeros(is_word.shape, np.int64)
    rows[is_word] = flat
    return rows


def join_rows(name: str, sentences: Sequence[Any], lengths: Sequence[int], num_cells: int) -> Array:
    """Join the values of sentences under a row that stands for padding."""
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
    """Take the rows of each table."""
    if isinstance(rows, np.ndarray):
        return {name: table[rows] for name, table in tables.items()}
    return {name: [table[row] for row in rows] for name, table in tables.items()}


def count_axes(ids: Any) -> int:
    """Count the axes of an array, or of lists in lists, down their first that is not empty."""
    if not isinstance(ids, list | tuple):
        return int(getattr(ids, "ndim", 0))
    first = next((item for item in ids if not isinstance(item, list | tuple) or item), ())
    return 1 + (count_axes(first) if len(ids) else 0)


def make_batch(
    data: dict[str, Any],
    return_tensors: str | TensorType | None,
    encodings: list[ElmoEncoding] | None = None,
) -> BatchEncoding:
    """Return what tokenizers return."""
    # PyTorch takes over the memory of the arrays; the base class would copy them cell by cell.
    if return_tensors is not None and TensorType(return_tensors) == TensorType.PYTORCH:
        data = {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in data.items()
        }
    # The base class asks the encodings of the Rust tokenizers just what an ElmoEncoding can tell.
    return BatchEncoding(data, cast(Any, encodings), return_tensors)


def read_vocabulary(path: Path) -> list[str]:
    """Read a vocabulary, a JSON list."""
    try:
        vocab = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"Expected a JSON list in {path}, got: {error}.") from error
    if not isinstance(vocab, list):
        raise ValueError(f"Expected a JSON list in {path}, got a {type(vocab).__name__}.")
    return vocab

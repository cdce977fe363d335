"""Conversion of words to ids: rows of character ids, ids of a lexicon, or both."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from .configuration_elmo import NUM_BYTE_CHARACTERS, SPECIAL_CHAR_IDS, ElmoConfig
from .word_cache import WordIds

PADDING_OFFSET = 1  # id 0 means "no token", so every id of an old format is shifted by one
NUM_WORD_MARKS = 2  # cells of a word without a character: the word start and the word end
NUM_BYTES = 256
REPLACEMENT = "\ufffd"  # for a character that was unknown, or cut within its bytes

Array: TypeAlias = npt.NDArray[np.int64]


def index(vocab: Sequence[str]) -> dict[str, int]:
    """Map each entry of a vocabulary to its id, from 1 on; of duplicates, the last id counts."""
    return {entry: row for row, entry in enumerate(vocab, PADDING_OFFSET)}


def describe(value: object) -> str:
    """Format a value and its type for an error message."""
    text = repr(value)
    return f"{text if len(text) < 50 else text[:50] + '...'} ({type(value).__name__})"


class Spelling:
    """Spelling of words as rows of ids: `[word start, characters, word end, padding characters]`.

    Args:
        vocab: Character vocabulary; the first entry has id 1. None = the bytes of UTF-8.
        unknown: Entry for characters that are not in the vocabulary.
        num_cells: Number of cells (ids) in a row, word start and word end included.
        marks: Ids of the word start, the word end and the padding.
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
            # Ids by code point; the last id is for all larger code points.
            self._ids = np.full(max(points, default=0) + 2, ids[unknown], np.int64)
            self._ids[points] = [ids[chr(point)] for point in points]

    def spell(self, words: Sequence[str]) -> Array:
        """Spell words, shape `(1 + words, characters)`; row 0 means "no word" and is all zeros."""
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
        """Spell a sentence boundary, given its character id, shape `(characters,)`."""
        word_start_id, word_end_id, padding_id = self.marks
        row = [word_start_id, char_id, word_end_id]
        return np.array(row + [padding_id] * (self.num_cells - len(row)), np.int64)

    def read(self, row: Array) -> str:
        """Turn a row of ids back into its word, without characters that were cut off."""
        ids = row[~np.isin(row, self.marks)].tolist()
        if self.vocab is None:
            codes = [char_id - PADDING_OFFSET for char_id in ids if 0 < char_id <= NUM_BYTES]
            return bytes(codes).decode("utf-8", "replace")
        entries = [self.vocab[char_id - PADDING_OFFSET] for char_id in ids if char_id > 0]
        return "".join(REPLACEMENT if entry == self.unknown else entry for entry in entries)


def spell_boundaries(config: ElmoConfig) -> WordIds:
    """Return the ids of `<S>` and `</S>`, `(2, characters)` and `(2,)`; None = not read."""
    ids = word_ids = None
    if config.char_embedding_size:
        marks = (config.word_start_char_id, config.word_end_char_id, config.char_padding_id)
        boundaries = (config.sentence_start_char_id, config.sentence_end_char_id)
        spelling = Spelling(None, "", config.max_characters_per_token, marks)
        ids = torch.from_numpy(np.stack([spelling.spell_boundary(x) for x in boundaries]))
    if config.word_embedding_size:
        word_ids = torch.tensor([config.sentence_start_word_id, config.sentence_end_word_id])
    return ids, word_ids


class WordTables:
    """Converter of words to ids and back; `settings` are arguments of `ElmoTokenizer`."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        char_vocab: list[str] | None,
        word_vocab: list[str] | None,
        pad_token: str,
    ) -> None:
        self.settings = settings
        self.characters = settings["characters"]
        self.unknown = settings["unknown"]
        self.num_cells = settings["max_characters_per_token"]
        _check_vocabularies(settings, char_vocab, word_vocab)
        self.entries = [pad_token, *(char_vocab or word_vocab or [])]
        self.has_lexicon = word_vocab is not None
        self._id_of_word = index(word_vocab or [])
        self.boundaries = {
            settings[name]: settings[f"{name}_char_id"]
            for name in ("sentence_start", "sentence_end")
        }
        if self.characters != "none":
            self._check_cells()
            ids = [settings[name] for name in ("word_start_char_id", "word_end_char_id")]
            marks = (*ids, settings["char_padding_id"])
            self.spelling = Spelling(char_vocab, self.unknown, self.num_cells, marks)

    def _check_cells(self) -> None:
        if self.num_cells <= NUM_WORD_MARKS:
            raise ValueError(
                f"Expected max_characters_per_token above {NUM_WORD_MARKS} (a word's marks), got "
                f"{self.num_cells}."
            )
        for name in SPECIAL_CHAR_IDS:
            if not 0 < self.settings[name] < self.num_ids:
                raise ValueError(
                    f"Expected {name} from 1 to {self.num_ids - 1}, got {self.settings[name]}."
                )

    @property
    def num_ids(self) -> int:
        """Number of character ids, or of lexicon ids if no characters are read; includes id 0."""
        return NUM_BYTE_CHARACTERS if self.characters == "bytes" else len(self.entries)

    def tabulate(self, rows: Mapping[str, int]) -> dict[str, Array]:
        """Make tables of ids of distinct words, given each word's row; row 0 means "no word"."""
        tables = {}
        if self.characters != "none":
            tables["input_ids"] = self.spelling.spell(list(rows))
        if self.has_lexicon:
            tables["word_input_ids"] = self._look_up(list(rows))
        maps = self.settings["map_boundary_words"]
        for word in self.boundaries.keys() & rows.keys():
            if self.has_lexicon:  # look up the complete word, even if the cells cut it
                (entry,) = self._find([word if maps else self.unknown])
                tables["word_input_ids"][rows[word]] = entry
            if self.characters != "none" and maps:
                spelled = self.spelling.spell_boundary(self.boundaries[word])
                tables["input_ids"][rows[word]] = spelled
        tables["attention_mask"] = np.array([0] + [1] * len(rows), np.int64)
        return tables

    def _look_up(self, words: list[str]) -> Array:
        """Return the lexicon ids of words, shape `(1 + words,)`; the first id is 0, "no word"."""
        if self.characters == "code_points":  # ELMoForManyLangs looks up the cut word
            words = [word[: self.num_cells - NUM_WORD_MARKS] for word in words]
        return np.array([0, *self._find(words)], np.int64)

    def _find(self, words: list[str]) -> list[int]:
        unknown = self._id_of_word[self.unknown]
        return [self._id_of_word.get(word, unknown) for word in words]

    def read(self, row: Array) -> str:
        """Turn the ids of a word back into the word."""
        if not row.any():
            return self.entries[0]
        if self.characters == "none":
            return self.entries[row.item()]
        for word, char_id in self.boundaries.items():
            if np.array_equal(row[:3], self.spelling.spell_boundary(char_id)[:3]):
                return str(word)
        return self.spelling.read(row)


def _check_vocabularies(
    settings: Mapping[str, Any], char_vocab: list[str] | None, word_vocab: list[str] | None
) -> None:
    characters, unknown = settings["characters"], settings["unknown"]
    if characters not in ("bytes", "code_points", "none"):
        raise ValueError(
            f"Expected characters 'bytes', 'code_points' or 'none', got {characters!r}."
        )
    if (characters == "code_points") != (char_vocab is not None):
        raise ValueError(
            "Expected a char_vocab with characters='code_points' and only then, got characters="
            f"{characters!r} and {'no' if char_vocab is None else 'a'} char_vocab."
        )
    for name in ("sentence_start", "sentence_end", "unknown"):
        if not isinstance(settings[name], str):
            raise ValueError(f"Expected a string as {name}, got {settings[name]!r}.")
    if characters == "none" and word_vocab is None:
        raise ValueError("Expected a word_vocab with characters='none', got none.")
    for name, vocab in (("char_vocab", char_vocab), ("word_vocab", word_vocab)):
        for place, entry in enumerate(vocab or []):
            if not isinstance(entry, str):
                raise ValueError(
                    f"Expected a list of strings as {name}, got {describe(entry)} as entry {place}."
                )
        if vocab is not None and unknown not in vocab:
            raise ValueError(
                f"Expected {unknown!r} in {name}, for words or characters that are not in it; got "
                f"{len(vocab)} entries without it, first {vocab[:3]}. If it has another name, pass "
                "unknown=..."
            )


def check_tables(
    config: ElmoConfig,
    char_vocab: Sequence[str] | None,
    word_vocab: Sequence[str] | None,
    *,
    is_spelling_known: bool,
) -> None:
    """Check that vocabularies fit the tables of a biLM.

    If `is_spelling_known`, the size of a table of bytes is not checked: it may have extra rows.
    """
    if not is_spelling_known and not char_vocab and config.char_vocab_size != NUM_BYTE_CHARACTERS:
        raise ValueError(
            f"Expected a char_vocab, since the character table has {config.char_vocab_size} rows; "
            f"that of bytes has {NUM_BYTE_CHARACTERS}. If these are bytes all the same, pass "
            "characters='bytes'."
        )
    if (word_vocab is None) != (config.word_vocab_size == 0):
        raise ValueError(
            f"Expected {'no' if config.word_vocab_size == 0 else 'a'} word_vocab for a word table "
            f"of {config.word_vocab_size} rows."
        )
    for name, vocab, size in (
        ("char_vocab", char_vocab or [], config.char_vocab_size),
        ("word_vocab", word_vocab or [], config.word_vocab_size),
    ):
        if vocab and len(vocab) + PADDING_OFFSET > size:
            raise ValueError(
                f"Expected at most {size - PADDING_OFFSET} entries in {name}, as the table has "
                f"{size} rows with that of no token, got {len(vocab)}."
            )


def read_vocabularies(
    files: Mapping[str, str | None], listed: Collection[str] | None, folder: str
) -> dict[str, list[str]]:
    """Read the vocabulary files of a tokenizer.

    Args:
        files: The file of each vocabulary; None = no file.
        listed: Vocabularies that the tokenizer's configuration lists; None = no list, as in files
            of early versions.
        folder: Folder or name of the tokenizer, for errors.

    Raises:
        FileNotFoundError: If the file of a listed vocabulary is missing.
        ValueError: If a file is not a JSON list.
    """
    vocabularies = {}
    for name, path in files.items():
        if path is None and name in (listed or ()):
            raise FileNotFoundError(
                f"Expected {name}.json beside tokenizer_config.json in {folder}, found none."
            )
        is_own = listed is None or name in listed  # another file of this name may be a user's
        if path is not None and (is_own or Path(path).name != f"{name}.json"):
            vocabularies[name] = _read_vocabulary(Path(path))
    return vocabularies


def _read_vocabulary(path: Path) -> list[str]:
    """Read a vocabulary, a JSON list."""
    try:
        vocab = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"Expected a JSON list in {path}, got: {error}.") from error
    if not isinstance(vocab, list):
        raise ValueError(f"Expected a JSON list in {path}, got a {type(vocab).__name__}.")
    return vocab

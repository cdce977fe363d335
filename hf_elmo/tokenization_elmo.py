"""Tokenizer of a biLM: words to character ids, to rows of a word lexicon, or to both."""

import json
import zlib
from collections.abc import Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from transformers import BatchEncoding, TensorType
from transformers.tokenization_python import PythonBackend
from transformers.tokenization_utils_base import TruncationStrategy
from transformers.utils.generic import PaddingStrategy

from .character_ids import NUM_BYTES, PADDING_OFFSET, WordTables, check_tables, read_vocabularies
from .configuration_elmo import (
    MAX_CHARACTERS_PER_TOKEN,
    SPECIAL_CHAR_IDS,
    ElmoConfig,
)
from .tokenization_batches import (
    SPECIAL_MASK,
    check_options,
    count_axes,
    find_width,
    find_words,
    is_left_side,
    join_rows,
    lay_out,
    make_batch,
    read_features,
    read_sentences,
    take,
)
from .word_splitting import WORD_PATTERN, check_pattern, split_text

VOCAB_FILES_NAMES = {"char_vocab_file": "char_vocab.json", "word_vocab_file": "word_vocab.json"}


class ElmoTokenizer(PythonBackend):
    """Tokenizer that turns words into the ids that a biLM reads.

    A word is always one row: `[word start, characters, word end, padding characters]`, cut or
    filled to `max_characters_per_token` cells. A row of zeros is not a word. The characters are the
    UTF-8 bytes of the word (lone surrogates are omitted), or the word's code points if there is a
    `char_vocab`. With a `word_vocab`, a word also has an id in that lexicon. The model itself adds
    the boundaries of a sentence, so the tokenizer makes no rows for them.

    Sources, with all ids shifted by one here: bilm-tf (`UnicodeCharsVocabulary`), AllenNLP
    (`ELMoCharacterMapper`), ELMoForManyLangs (`create_one_batch`).

    `tokenizer(sentences, is_split_into_words=True)` reads lists of words. Without
    `is_split_into_words`, a sentence is a text in which `word_pattern` finds the words. The result:

    - `input_ids (batch, tokens, characters)`, unless the biLM reads no characters,
    - `word_input_ids (batch, tokens)`, if there is a `word_vocab`,
    - `attention_mask (batch, tokens)`: 1 = a word, 0 = padding.

    Without `return_tensors`, these are NumPy arrays: one for the batch if `padding` is on, else one
    for each sentence. `max_length` and `pad_to_multiple_of` count words. As in all of
    `transformers`, `[]` is one empty sentence if `is_split_into_words`, else an empty batch.

    Args:
        characters: Spelling of a word; None = bytes, or code points if `char_vocab` is given. With
            "none", a word only has its id in `word_vocab`.
        char_vocab: Entries of the character table; the first has id 1. Only `unknown` and entries
            of one code point are used. If an entry occurs twice, here or in `word_vocab`, the last
            one counts, as in the original implementations.
        word_vocab: Entries of the lexicon; the first has id 1. None = no lexicon. Complete words
            are looked up, or with code points, words that are cut to fit their cells.
        max_characters_per_token: Number of cells (ids) of a word, word start and end included.
        sentence_start: Word that means the start of a sentence.
        sentence_end: Word that means the end of a sentence.
        unknown: Entry of the vocabularies for words and characters that are not in them.
        map_boundary_words: Whether the words `sentence_start` and `sentence_end` are read as
            boundaries. If not, they are spelled like other words and have the lexicon id of
            `unknown`.
        word_pattern: Regular expression (of the `regex` package); its matches in a text are the
            words.
        pad_token: Word that represents a row of zeros when ids are turned back into words.
        kwargs: The special character ids of `ElmoConfig` (`sentence_start_char_id`,
            `sentence_end_char_id`, `word_start_char_id`, `word_end_char_id`, `char_padding_id`),
            with the defaults of `ElmoConfig`; and arguments of every tokenizer, such as
            `padding_side` or `model_max_length`.

    Raises:
        ValueError: If the arguments contradict each other.
    """

    vocab_files_names = VOCAB_FILES_NAMES
    pad_token_id = 0

    def __init__(
        self,
        *,
        characters: Literal["bytes", "code_points", "none"] | None = None,
        char_vocab: Sequence[str] | None = None,
        word_vocab: Sequence[str] | None = None,
        max_characters_per_token: int = MAX_CHARACTERS_PER_TOKEN,
        sentence_start: str = "<S>",
        sentence_end: str = "</S>",
        unknown: str = "<UNK>",
        map_boundary_words: bool = True,
        word_pattern: str = WORD_PATTERN,
        pad_token: str = "[PAD]",
        **kwargs: Any,
    ) -> None:
        if characters is None:
            characters = "bytes" if char_vocab is None else "code_points"
        self.characters = characters
        self.max_characters_per_token = max_characters_per_token
        for name in SPECIAL_CHAR_IDS:
            setattr(self, name, kwargs.pop(name, getattr(ElmoConfig, name)))
        self.sentence_start = sentence_start
        self.sentence_end = sentence_end
        self.unknown = unknown
        self.map_boundary_words = map_boundary_words
        self.word_pattern = word_pattern
        saved = dict(vars(self))  # `save_pretrained` writes the base class's arguments
        kwargs.pop("auto_map", None)  # names files that saving would not write
        vocabularies = {"char_vocab": char_vocab, "word_vocab": word_vocab}
        kwargs["vocabularies"] = [name for name, vocab in vocabularies.items() if vocab is not None]
        super().__init__(**saved, pad_token=pad_token, **kwargs)  # type: ignore[no-untyped-call]

        self.char_vocab = None if char_vocab is None else list(char_vocab)
        self.word_vocab = None if word_vocab is None else list(word_vocab)
        check_pattern(word_pattern)
        self._tables = WordTables(saved, self.char_vocab, self.word_vocab, pad_token)
        self.model_input_names = [
            *(["input_ids"] if characters != "none" else []),
            *(["word_input_ids"] if word_vocab is not None else []),
            "attention_mask",
        ]

    @classmethod
    def from_config(
        cls,
        config: ElmoConfig,
        *,
        char_vocab: Sequence[str] | None = None,
        word_vocab: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Build the tokenizer that fits a biLM.

        Args:
            config: The biLM's configuration, with the number of cells and the special ids.
            char_vocab: See the class; None = bytes, if the biLM reads characters.
            word_vocab: See the class; needed if the biLM has a lexicon.
            kwargs: Further arguments of the class.

        Raises:
            ValueError: If the vocabularies do not fit the biLM's tables.
        """
        if config.char_embedding_size == 0:
            kwargs["characters"] = "none"
        for name in ("max_characters_per_token", *SPECIAL_CHAR_IDS):
            kwargs[name] = getattr(config, name)
        tokenizer = cls(char_vocab=char_vocab, word_vocab=word_vocab, **kwargs)
        is_known = "characters" in kwargs
        check_tables(config, char_vocab, word_vocab, is_spelling_known=is_known)
        return tokenizer

    @classmethod
    def convert_to_native_format(cls, **kwargs: Any) -> dict[str, Any]:
        """Read the vocabulary files that `from_pretrained` has found.

        Raises:
            FileNotFoundError: If there is no `tokenizer_config.json` of this class, or no file of a
                vocabulary that it lists.
            ValueError: If a file is not a JSON list.
        """
        if "characters" not in kwargs:  # the base class would use the defaults
            raise FileNotFoundError(
                f"Expected a tokenizer_config.json of {cls.__name__} in {kwargs['name_or_path']}, "
                "a folder or a name on the Hub. For a biLM that was saved alone, write it once: "
                f"{cls.__name__}.from_config(config).save_pretrained(folder)."
            )
        files = {name.removesuffix("_file"): kwargs.pop(name, None) for name in VOCAB_FILES_NAMES}
        folder = kwargs["name_or_path"]
        return kwargs | read_vocabularies(files, kwargs.get("vocabularies"), folder)

    def save_vocabulary(
        self, save_directory: str | PathLike[str], filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Write each vocabulary as a JSON list, one entry per line; bytes have no vocabulary."""
        paths = []
        for name, file_name in VOCAB_FILES_NAMES.items():
            vocab = getattr(self, name.removesuffix("_file"))
            prefix = f"{filename_prefix}-" if filename_prefix else ""
            path = Path(save_directory) / (prefix + file_name)
            if vocab is not None:
                # ASCII with escapes, so that no entry can break a line or an encoding.
                path.write_text(json.dumps(vocab, indent=0) + "\n", encoding="ascii")
                paths.append(str(path))
        return tuple(paths)

    @property
    def is_fast(self) -> bool:
        """True, since pipelines ask only "fast" tokenizers for offsets and word ids."""
        return True

    @property
    def vocab_size(self) -> int:
        """Number of different ids in the first of `model_input_names`, with id 0."""
        return self._tables.num_ids

    def __len__(self) -> int:
        return self.vocab_size

    def get_vocab(self) -> dict[str, int]:
        """Map characters to ids; if the biLM reads no characters, map words of the lexicon."""
        if self.characters != "bytes":
            return {entry: row for row, entry in enumerate(self._tables.entries)}
        return {
            self.pad_token: self.pad_token_id,
            **{chr(byte): byte + PADDING_OFFSET for byte in range(NUM_BYTES)},
            **{f"[{name}]": getattr(self, name) for name in SPECIAL_CHAR_IDS},
        }

    @property
    def all_special_ids(self) -> list[int]:
        """Only the id 0, which means "no word"."""
        return [self.pad_token_id]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("pad_token", "pad_token_id") and value is None:
            return  # `tokenizer.pad_token = tokenizer.eos_token`; padding stays the row of zeros
        if name != "word_pattern" and name in getattr(vars(self).get("_tables"), "settings", ()):
            raise AttributeError(f"{name} cannot be changed. Pass it to from_pretrained instead.")
        super().__setattr__(name, value)  # type: ignore[no-untyped-call]

    def add_special_tokens(self, *args: Any, **kwargs: Any) -> int:
        """Set the padding token, as the base class does; refuse any other token.

        Raises:
            ValueError: If the vocabulary would grow. The tokenizer then stays unchanged.
        """
        before = dict(self._special_tokens_map), list(self._extra_special_tokens)
        try:
            return super().add_special_tokens(*args, **kwargs)
        except ValueError:
            self._special_tokens_map, self._extra_special_tokens = before
            raise

    def _add_tokens(self, new_tokens: Sequence[Any], special_tokens: bool = False) -> int:
        names = [str(token) for token in new_tokens if str(token) != self.pad_token]
        if names:
            raise ValueError(
                f"Can't add {names}: a biLM's vocabulary is fixed, and reads any word."
            )
        return 0

    def tokenize(
        self, text: str, pair: str | None = None, add_special_tokens: bool = False, **kwargs: Any
    ) -> list[str]:
        """Find the words of a text."""
        return split_text(text, self.word_pattern)[0]

    def spell(self, words: Sequence[str]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the ids of distinct words, faster than a call of the tokenizer does.

        Args:
            words: Words without duplicates.

        Returns:
            Character ids, shape `(words, characters)`, and rows of the lexicon, shape `(words,)`;
            None = the biLM does not read them.
        """
        tables = self._tables.tabulate({word: row for row, word in enumerate(words, 1)})
        ids, word_ids = (tables.get(name) for name in ("input_ids", "word_input_ids"))
        return (
            None if ids is None else torch.from_numpy(ids[1:]),
            None if word_ids is None else torch.from_numpy(word_ids[1:]),
        )

    def _encode_plus(  # type: ignore[override]  # kwargs are checked
        self,
        text: str | Sequence[str] | Sequence[Sequence[str]],
        text_pair: None = None,
        *,
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        truncation_strategy: TruncationStrategy = TruncationStrategy.DO_NOT_TRUNCATE,
        max_length: int | None = None,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: str | TensorType | None = None,
        **kwargs: Any,
    ) -> BatchEncoding:
        check_options(text_pair, kwargs)
        is_batch, sentences = read_sentences(text, is_split_into_words, self.word_pattern)
        if truncation_strategy != TruncationStrategy.DO_NOT_TRUNCATE and max_length is not None:
            cuts_left = self.truncation_side == "left"
            sentences = [sentence.truncate(max_length, cuts_left) for sentence in sentences]
        lengths = [len(sentence.words) for sentence in sentences]
        is_left = is_left_side(padding_side or self.padding_side)
        is_tensor = return_tensors is not None
        width = find_width(
            lengths, padding_strategy, max_length, pad_to_multiple_of, is_tensor=is_tensor
        )

        words = list(chain.from_iterable(sentence.words for sentence in sentences))
        rows = {word: row for row, word in enumerate(dict.fromkeys(words), PADDING_OFFSET)}
        tables = self._tables.tabulate(rows)
        if kwargs.get("return_special_tokens_mask"):
            tables[SPECIAL_MASK] = 1 - tables["attention_mask"]
        if kwargs.get("return_attention_mask") is False:
            del tables["attention_mask"]
        flat = np.fromiter(map(rows.__getitem__, words), np.int64, len(words))
        data = take(tables, lay_out(flat, lengths, width, is_left))

        if width is not None:
            sentences = [sentence.pad(width, is_left) for sentence in sentences]
        if kwargs.get("return_offsets_mapping"):
            offsets = [sentence.offsets for sentence in sentences]
            shape = (len(sentences), width, 2)
            data["offset_mapping"] = offsets if width is None else np.reshape(offsets, shape)
        if kwargs.get("return_length"):
            data["length"] = lengths
        if return_tensors is None and not is_batch:
            data = {name: values[0] for name, values in data.items()}
        return make_batch(data, return_tensors, sentences)

    def pad(
        self,
        encoded_inputs: Any,
        padding: bool | str | PaddingStrategy = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | TensorType | None = None,
        verbose: bool = True,
    ) -> BatchEncoding:
        """Pad encoded sentences; data collators call this method.

        Args:
            encoded_inputs: A sentence (a mapping from input names to ids), a list of sentences, or
                a mapping from input names to lists of ids. Other values are returned unchanged.
            padding: True or "longest", "max_length", or False.
            max_length: Number of words after padding with `padding="max_length"`.
            pad_to_multiple_of: The number of words after padding is a multiple of this.
            padding_side: "left" or "right"; None = `self.padding_side`.
            return_attention_mask: False = add no mask to sentences without a mask.
            return_tensors: "pt" or "np"; None = PyTorch tensors if the ids are, else NumPy arrays.
            verbose: As in the base class.

        Returns:
            The padded ids, in the shapes that a call of the tokenizer returns.

        Raises:
            ValueError: If there are no ids, or a sentence is longer than `max_length`.
        """
        strategy, _, max_length, _ = self._get_padding_truncation_strategies(  # type: ignore[no-untyped-call]
            padding=padding, max_length=max_length, verbose=verbose
        )  # transformers has no annotations there
        name = self.model_input_names[0]
        features, is_batch = read_features(encoded_inputs, name, self._num_sentence_axes)
        main = features[name]
        if return_tensors is None and any(isinstance(ids, torch.Tensor) for ids in main):
            return_tensors = TensorType.PYTORCH
        lengths = [len(ids) for ids in main]
        if return_attention_mask is not False and "attention_mask" not in features:
            features["attention_mask"] = [find_words(ids) for ids in main]
        is_left = is_left_side(padding_side or self.padding_side)
        is_tensor = return_tensors is not None
        width = find_width(lengths, strategy, max_length, pad_to_multiple_of, is_tensor=is_tensor)

        names = [name for name in features if name in (*self.model_input_names, SPECIAL_MASK)]
        cells = self.max_characters_per_token
        tables = {name: join_rows(name, features.pop(name), lengths, cells) for name in names}
        flat = np.arange(PADDING_OFFSET, PADDING_OFFSET + sum(lengths))
        rows = lay_out(flat, lengths, width, is_left)
        data = {**take(tables, rows), **features}
        if not is_batch:
            data = {name: values[0] for name, values in data.items()}
        return make_batch(data, return_tensors)

    def checksum(self) -> int:
        """Return a checksum of all settings and vocabularies that determine the ids of a word."""
        names = ["characters", "char_vocab", "word_vocab", "max_characters_per_token"]
        names += [*SPECIAL_CHAR_IDS, "sentence_start", "sentence_end", "unknown"]
        names += ["map_boundary_words"]
        return zlib.crc32(json.dumps([getattr(self, name) for name in names]).encode())

    @property
    def _num_sentence_axes(self) -> int:
        return 1 if self.characters == "none" else 2

    def get_special_tokens_mask(
        self, token_ids_0: Any, token_ids_1: Any = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """Mark the padding of a sentence: 1 = padding, 0 = a word; there are no special words."""
        check_options(token_ids_1, {})
        return [1 - is_word for is_word in find_words(token_ids_0)]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Encode one or several words.

        Returns:
            For each word, the list of its character ids, or its id in the lexicon if the biLM reads
            no characters.
        """
        words = [tokens] if isinstance(tokens, str) else tokens
        ids = self(words, is_split_into_words=True)[self.model_input_names[0]].tolist()
        return ids[0] if isinstance(tokens, str) else ids

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Turn ids back into words, without characters that were cut off.

        Args:
            ids: Ids of words, shape `(tokens, characters)`, or of one word, `(characters,)`; one
                axis less if the biLM reads no characters.
            skip_special_tokens: Whether to leave out padding; if not, padding becomes `pad_token`.

        Returns:
            The words, or one word.
        """
        rows = np.asarray(ids, np.int64)
        if rows.size == 0:
            return []
        if not 0 <= rows.min() <= rows.max() < self.vocab_size:
            raise ValueError(
                f"Expected ids from 0 to {self.vocab_size - 1}, got {rows.min()} to {rows.max()}."
            )
        if rows.ndim == self._num_sentence_axes - 1:
            return self._tables.read(rows.reshape(-1))
        rows = rows.reshape(len(rows), -1)
        read = self._tables.read
        kept = (row for row in rows if row.any() or not skip_special_tokens)
        return [read(row) if row.any() else str(self.pad_token) for row in kept]

    def decode(
        self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any
    ) -> str | list[str]:
        """Turn a sentence's ids back into a text of words, or a batch's into a list of texts."""
        if count_axes(token_ids) > self._num_sentence_axes:
            return [self._decode(ids, skip_special_tokens, **kwargs) for ids in token_ids]
        return self._decode(token_ids, skip_special_tokens, **kwargs)

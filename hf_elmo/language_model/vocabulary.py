"""Target words or subword pieces of the language model: counting, files, lookup of ids."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, trainers

from hf_elmo.files.output_file import write_file
from hf_elmo.text.text_reader import SentenceReader

logger = logging.getLogger(__name__)

SENTENCE_START, SENTENCE_END, UNKNOWN = "<S>", "</S>", "<UNK>"
SPECIAL_WORDS = (SENTENCE_START, SENTENCE_END, UNKNOWN)  # first lines of bilm-tf's files
VOCABULARY_NAME = "target_vocab.txt"
PIECES_NAME = "pieces.json"
MANY_UNKNOWN = 0.2  # share of `<UNK>` in a text that is probably not of the vocabulary's kind
PIECE_MARK = "##"  # prefix of all pieces of a word except the first


def read_words(path: Path) -> list[str]:
    """Read a file with one word per line; empty lines at its end are skipped.

    Raises:
        ValueError: If the file is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as lines:
            words = [line.rstrip("\r\n") for line in lines]
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected UTF-8 with one word per line in {path}, got: {error}."
        ) from error
    while words and not words[-1]:
        words.pop()
    return words


def write_words(path: Path, words: Iterable[str]) -> None:
    """Write a file with one word per line."""
    write_file(path, (f"{word}\n" for word in words))


class TargetVocabulary:
    """Target words of the softmax, in the order of its rows.

    Sort the words by decreasing frequency, because the sampled softmax draws low ids more often.

    Args:
        words: All words, without duplicates, including `<S>`, `</S>` and `<UNK>`.
        pieces: Tokenizer that splits words into pieces; None = the entries are complete words.

    Raises:
        ValueError: If a special word is missing, or a word occurs twice.
    """

    def __init__(self, words: Sequence[str], pieces: Tokenizer | None = None) -> None:
        self.words = list(words)
        self.pieces = pieces
        self._ids = {word: row for row, word in enumerate(self.words)}
        missing = [word for word in SPECIAL_WORDS if word not in self._ids]
        if missing:
            raise ValueError(
                f"Expected {', '.join(SPECIAL_WORDS)} in the vocabulary, missing: "
                f"{', '.join(missing)}. Add one line for each, first in the file."
            )
        if len(self._ids) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"Expected each word of the vocabulary once, got {twice!r} again.")
        self.special_ids = [self._ids[word] for word in SPECIAL_WORDS]
        self.boundary_ids = self.special_ids[:2]  # of <S> and </S>, in this order
        self.unknown_id = self._ids[UNKNOWN]

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def convert_words_to_ids(self, words: Iterable[str]) -> list[int]:
        """Look up words; words outside the vocabulary become `<UNK>`."""
        return [self._ids.get(word, self.unknown_id) for word in words]

    def describe(self) -> dict[str, int]:
        """Return the fields of `ElmoConfig` for a softmax over these words."""
        start, end = self.boundary_ids
        return {
            "vocab_size": len(self),
            "sentence_start_target_id": start,
            "sentence_end_target_id": end,
        }

    def read(self, text: SentenceReader) -> SentenceReader:
        """Read a text as words, or as pieces if the vocabulary contains pieces."""
        return text if self.pieces is None else split_words(text, self.pieces)

    @classmethod
    def from_file(cls, path: Path | str) -> "TargetVocabulary":
        """Read a vocabulary file, or the files in a model's folder."""
        path = Path(path)
        if not path.is_dir():
            return cls(read_words(path))
        pieces = path / PIECES_NAME
        return cls(
            read_words(path / VOCABULARY_NAME),
            Tokenizer.from_file(str(pieces)) if pieces.is_file() else None,
        )

    def save(self, path: Path | str) -> None:
        """Write a file; in a folder, write `target_vocab.txt` and, for pieces, `pieces.json`.

        Raises:
            ValueError: If a word contains a line break, because the file has one word per line.
        """
        path = Path(path)
        broken = next((word for word in self.words if "\n" in word or word.endswith("\r")), None)
        if broken is not None:
            raise ValueError(f"Expected words without line breaks, got {broken!r}.")
        if path.is_dir():
            if self.pieces is not None:
                self.pieces.save(str(path / PIECES_NAME))
            path = path / VOCABULARY_NAME
        write_words(path, self.words)


def warn_of_unknown(count: int, total: int) -> None:
    """Warn if many of the words to predict are outside the vocabulary."""
    if count > MANY_UNKNOWN * total:
        logger.warning(
            "%d of %d predictions are <UNK>: these words are not in the vocabulary, so the "
            "probabilities say little. Do text and vocabulary have the same language, case and "
            "tokenisation?",
            count,
            total,
        )


def count_words(sentences: Iterable[Sequence[str]]) -> Counter[str]:
    """Count the words of all sentences; memory grows with the number of distinct words only."""
    counts: Counter[str] = Counter()
    for words in sentences:
        counts.update(words)
    return counts


def build_vocabulary(
    counts: Counter[str], *, max_size: int | None = None, min_count: int = 1
) -> TargetVocabulary:
    """Build a vocabulary: `<S>`, `</S>`, `<UNK>`, then the most frequent words.

    Args:
        counts: Frequency of each word.
        max_size: Maximum number of words, including the three special ones; None = unlimited.
        min_count: Minimum frequency of a word.

    Returns:
        The words by decreasing frequency; equally frequent words in alphabetical order. The empty
        word and words with a line break are left out, because the file has one word per line.
    """
    kept = [
        (-count, word)
        for word, count in counts.items()
        if count >= min_count and word not in ("", *SPECIAL_WORDS) and not {"\n", "\r"} & set(word)
    ]
    words = [word for _, word in sorted(kept)]
    if max_size is not None:
        words = words[: max(0, max_size - len(SPECIAL_WORDS))]
    return TargetVocabulary([*SPECIAL_WORDS, *words])


def build_pieces(text: SentenceReader, *, max_size: int) -> TargetVocabulary:
    """Build a vocabulary of subword pieces, which are learned by byte pair encoding.

    Args:
        text: The text.
        max_size: Maximum number of pieces, including `<S>`, `</S>` and `<UNK>`. It is exceeded only
            if the text has more distinct characters.

    Returns:
        The pieces by decreasing frequency in the text, after the three special words.
    """
    learner = Tokenizer(models.BPE(unk_token=UNKNOWN, continuing_subword_prefix=PIECE_MARK))
    inner = {PIECE_MARK + character for word in count_words(text(None)) for character in word[1:]}
    trainer = trainers.BpeTrainer(
        vocab_size=max_size,
        # Sorted, because ids break ties: in random order, two runs would learn different pieces.
        special_tokens=[*SPECIAL_WORDS, *sorted(inner)],
        continuing_subword_prefix=PIECE_MARK,
        show_progress=False,
    )
    learner.train_from_iterator(text(None), trainer)  # words are not split before: "10 000" is one
    pieces = Tokenizer(learner.model)  # without special tokens
    counts = count_words(split_words(text, pieces)(None))
    counts.update(dict.fromkeys(pieces.get_vocab(), 0))  # unused pieces have the count 0
    return TargetVocabulary(build_vocabulary(counts, min_count=0).words, pieces)


def split_words(text: SentenceReader, pieces: Tokenizer) -> SentenceReader:
    """Split the words of a text into pieces."""
    return lambda rng: (pieces.encode(x, is_pretokenized=True).tokens for x in text(rng))

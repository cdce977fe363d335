"""Target words of the language model: counting, files, and lookup of ids."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

SENTENCE_START, SENTENCE_END, UNKNOWN = "<S>", "</S>", "<UNK>"
SPECIAL_WORDS = (SENTENCE_START, SENTENCE_END, UNKNOWN)  # first lines of bilm-tf's files
VOCABULARY_NAME = "target_vocab.txt"


def read_words(path: Path) -> list[str]:
    """Read a file with one word per line.

    Raises:
        ValueError: If the file is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            return [line.rstrip("\r\n") for line in lines]
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected UTF-8 with one word per line in {path}, got: {error}."
        ) from error


def write_words(path: Path, words: Iterable[str]) -> None:
    """Write a file with one word per line."""
    path.write_text("".join(f"{word}\n" for word in words), "utf-8", newline="\n")


class TargetVocabulary:
    """Target words of the softmax, in the order of its rows.

    Sort them by decreasing frequency, because the sampled softmax draws low ids more often.

    Args:
        words: All words, without duplicates, including `<S>`, `</S>` and `<UNK>`.

    Raises:
        ValueError: If a special word is missing, or a word occurs twice.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
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
        self.boundary_ids = self.special_ids[:2]  # of <S> and </S>
        self._unknown = self._ids[UNKNOWN]

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def convert_words_to_ids(self, words: Iterable[str]) -> list[int]:
        """Look up words; words outside the vocabulary become `<UNK>`."""
        return [self._ids.get(word, self._unknown) for word in words]

    @classmethod
    def from_file(cls, path: Path | str) -> "TargetVocabulary":
        """Read a vocabulary file, or the file in a model's folder."""
        path = Path(path)
        if path.is_dir():
            path = path / VOCABULARY_NAME
        return cls(read_words(path))

    def save(self, path: Path | str) -> None:
        """Write a vocabulary file, or `target_vocab.txt` in a folder."""
        path = Path(path)
        if path.is_dir():
            path = path / VOCABULARY_NAME
        write_words(path, self.words)


def count_words(sentences: Iterable[Sequence[str]]) -> Counter[str]:
    """Count the words of all sentences; memory grows with the number of distinct words only."""
    counts: Counter[str] = Counter()
    for words in sentences:
        counts.update(words)
    return counts


def build_vocabulary(
    counts: Counter[str], *, max_size: int | None = None, min_count: int = 1
) -> TargetVocabulary:
    """Keep the most frequent words, after `<S>`, `</S>` and `<UNK>`.

    Args:
        counts: Frequency of each word.
        max_size: Maximum number of words, including the three special ones; None = unlimited.
        min_count: Minimum frequency of a word.

    Returns:
        The words by decreasing frequency; equally frequent words in alphabetical order.
    """
    kept = [
        (-count, word)
        for word, count in counts.items()
        if count >= min_count and word not in SPECIAL_WORDS
    ]
    words = [word for _, word in sorted(kept)]
    if max_size is not None:
        words = words[: max(0, max_size - len(SPECIAL_WORDS))]
    return TargetVocabulary([*SPECIAL_WORDS, *words])

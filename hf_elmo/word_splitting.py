"""Split a text into words by a regular expression."""

from typing import TypeAlias

import regex

# A word is: a number with inner points and commas; an apostrophe after a word, with the letters
# that follow it ("don't" = "don", "'t"); a run of letters, marks, digits and underscores; or any
# other visible character, with characters that combine with it (\X, so that a flag is one word).
WORD_PATTERN = r"\d+(?:[.,]\d+)+|(?<=\w)['’]\w+|\w+|(?!\s)\X"

Span: TypeAlias = tuple[int, int]


def split_text(text: str, word_pattern: str = WORD_PATTERN) -> tuple[list[str], list[Span]]:
    """Find the words of a text, and the start and end position of each word."""
    spans = [match.span() for match in regex.finditer(word_pattern, text)]
    spans = [(start, end) for start, end in spans if start < end]
    return [text[start:end] for start, end in spans], spans


def check_pattern(word_pattern: str) -> None:
    """Refuse a pattern that is not a regular expression."""
    try:
        regex.compile(word_pattern)
    except regex.error as error:
        raise ValueError(
            f"Expected a regular expression as word_pattern, got {word_pattern!r}: {error}."
        ) from error

"""Typing errors for training, so that a biLM learns to tolerate them."""

import random
from string import ascii_lowercase

MIN_LENGTH = 3  # an error would turn shorter words into other words


def misspell(word: str, rng: random.Random) -> str:
    """Make one typing error: swap two characters, or drop, double or replace one character."""
    if len(word) < MIN_LENGTH:
        return word
    place = rng.randrange(len(word) - 1)
    return rng.choice(list(list_errors(word, place, rng).values()))


def list_errors(word: str, place: int, rng: random.Random) -> dict[str, str]:
    """Return the word with each kind of error at character `place`, which is not the last one.

    In a word with characters outside of ASCII, one of its own characters replaces the old one. Some
    errors do not change the word, such as a swap of two equal characters.
    """
    before, here, after = word[:place], word[place], word[place + 1 :]
    return {
        "swap": before + after[0] + here + after[1:],
        "drop": before + after,
        "repeat": before + here + here + after,
        "replace": before + rng.choice(ascii_lowercase if word.isascii() else word) + after,
    }

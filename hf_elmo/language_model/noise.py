"""Typing errors in the words that a biLM reads, so that it learns to see past them."""

import random
from string import ascii_lowercase

MIN_LENGTH = 3  # of a word with an error: a shorter one would be another word


def misspell(word: str, rng: random.Random) -> str:
    """Make one typing error: two characters in the wrong order, one missing, twice or replaced."""
    if len(word) < MIN_LENGTH:
        return word
    place = rng.randrange(len(word) - 1)
    before, here, after = word[:place], word[place], word[place + 1 :]
    return rng.choice(
        [
            before + after[0] + here + after[1:],
            before + after,
            before + here + here + after,
            before + rng.choice(ascii_lowercase) + after,
        ]
    )

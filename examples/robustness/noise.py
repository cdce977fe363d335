"""Seven kinds of misspellings; each replaces a word by one word."""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.resources import files
from string import ascii_lowercase

from hf_elmo.language_model.typing_errors import list_errors

MIN_LENGTH = 4  # of a word that can be misspelt
ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")  # of a keyboard; each row is half a key further right
STEPS = ((0, -1), (0, 1), (1, -1), (1, 0), (-1, 0), (-1, 1))  # to the neighbouring keys
KEYS = {key: (row, place) for row, keys in enumerate(ROWS) for place, key in enumerate(keys)}
Noise = Callable[[str, random.Random], str]


def make_error(kind: str, word: str, rng: random.Random) -> str:
    """Swap two characters, or drop or repeat one; the first and the last character stay."""
    place = rng.randrange(1, len(word) - 1 - (kind == "swap"))
    return list_errors(word, place, rng)[kind]


def add_letter(word: str, rng: random.Random) -> str:
    """Insert a random letter."""
    place = rng.randrange(1, len(word))
    return word[:place] + rng.choice(ascii_lowercase) + word[place:]


def hit_neighbour(word: str, rng: random.Random) -> str:
    """Replace an inner letter by the letter of a neighbouring key."""
    places = [p for p in range(1, len(word) - 1) if word[p].lower() in KEYS]
    if not places:
        return word
    place = rng.choice(places)
    row, column = KEYS[word[place].lower()]
    near = [k for k, (r, c) in KEYS.items() if (r - row, c - column) in STEPS]
    key = rng.choice(near)
    return word[:place] + (key.upper() if word[place].isupper() else key) + word[place + 1 :]


def shuffle_middle(word: str, rng: random.Random) -> str:
    """Shuffle the characters between the first and the last."""
    return word[0] + "".join(rng.sample(word[1:-1], len(word) - 2)) + word[-1]


@cache
def read_misspellings() -> dict[str, list[str]]:
    """Read people's misspellings from the package codespell: a list for each correct word.

    codespell's dictionary is derived from Wikipedia (CC BY-SA 3.0).
    """
    found = defaultdict(list)
    lines = files("codespell_lib").joinpath("data/dictionary.txt").read_text("utf-8")
    for line in lines.splitlines():
        wrong, _, right = line.partition("->")
        if right.isalpha() and wrong.isalpha():  # one word for one word, no alternatives
            found[right.lower()].append(wrong)
    return found


def take_natural(word: str, rng: random.Random) -> str:
    """Replace a word by a known misspelling, if there is one."""
    known = read_misspellings().get(word.lower())
    if known is None:
        return word
    wrong = rng.choice(known)
    if word.isupper():
        return wrong.upper()
    return wrong.capitalize() if word[0].isupper() else wrong


NOISES: dict[str, Noise] = {
    **{kind: partial(make_error, kind) for kind in ("swap", "drop", "repeat")},
    "add": add_letter,
    "keyboard": hit_neighbour,
    "middle": shuffle_middle,
    "natural": take_natural,
}


def misspell_words(
    words: Sequence[str], noises: Sequence[str], level: float, seed: int
) -> list[str]:
    """Misspell a share of the words of four letters and more.

    Args:
        words: A sentence.
        noises: Kinds of noise; each word gets one of them.
        level: Share of the words. The words of a low level are also misspelt at a higher level.
        seed: Seed of the errors, which also depend on the sentence.
    """
    sentence = " ".join(words)
    return [
        _misspell(word, noises, level, random.Random(f"{seed} {place} {noises} {sentence}"))
        for place, word in enumerate(words)
    ]


def _misspell(word: str, noises: Sequence[str], level: float, rng: random.Random) -> str:
    if len(word) < MIN_LENGTH or not word.isalpha() or rng.random() >= level:
        return word
    noise = NOISES[rng.choice(noises)]
    tries = (noise(word, rng) for _ in range(20))  # a swap of equal letters changes nothing
    return next((wrong for wrong in tries if wrong != word), word)

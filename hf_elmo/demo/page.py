"""The demo as one HTML file: what is computed ahead, and how it goes into the page."""

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .explorer import Array, Explorer

TEMPLATE = Path(__file__).with_name("page.html")
MAPPED_WORDS = ("bank", "play")
# Sentences that the page shows without a server, and the word that is picked first.
EXAMPLES = (
    ("He sat on the bank of the river and looked at the water .", "bank"),
    ("The bank would not lend him any more money .", "bank"),
    ("The children play in the garden until dark .", "play"),
    ("He wrote a play for the new theatre .", "play"),
    ("She wrote a long letter to her father .", "letter"),
    ("The doctor gave the patient a bottle of medicine .", "patient"),
)
SHORTEST = 4  # letters of a word that can be picked without a server


def make_page(explorer: Explorer, model_name: str, *, is_served: bool, entities: str = "") -> str:
    """Make the page.

    Args:
        explorer: The model and its collection.
        model_name: How the page names the model.
        is_served: Whether a server answers for other sentences.
        entities: HTML of a section on entities; it is taken as it is.
    """
    data = {
        "model": model_name,
        "isServed": is_served,
        "numLayers": explorer.num_layers,
        "sentences": explorer.sentences,
        "places": explorer.places,
        "norms": _encode(explorer.norms()),
        "queries": list(_make_queries(explorer)),
        "maps": [explorer.map_senses(word) for word in MAPPED_WORDS],
    }
    # "<" would end the script, or begin another.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    template = TEMPLATE.read_text(encoding="utf-8")
    return template.replace("<!-- entities -->", entities).replace("<!-- data -->", text)


def make_query(explorer: Explorer, words: Sequence[str], position: int) -> dict[str, Any]:
    """Compute what the page shows of a word in its sentence.

    Raises:
        ValueError: If there is no such word, or there are more or longer ones than are taken.
    """
    comparison = explorer.compare(words, position)
    return {
        "words": words,
        "position": position,
        "products": _encode(comparison.products),
        "norm": _encode(comparison.norm),
        "guesses": explorer.guess(words, position),
        "misspelt": misspell(words[position]),
    }


def _make_queries(explorer: Explorer) -> Iterator[dict[str, Any]]:
    """Compute the words of the examples, the picked one first, and that one misspelt."""
    for sentence, picked in EXAMPLES:
        words = sentence.split()
        first = words.index(picked)
        others = [n for n, word in enumerate(words) if n != first and len(word) >= SHORTEST]
        for position in (first, *others):
            yield make_query(explorer, words, position)
        misspelt = [*words[:first], misspell(picked), *words[first + 1 :]]
        yield {**make_query(explorer, misspelt, first), "isMisspelt": True}


def misspell(word: str) -> str:
    """Exchange the last two neighbouring letters inside a word that differ; else double its end."""
    for n in range(len(word) - 3, 0, -1):
        if word[n] != word[n + 1]:
            return word[:n] + word[n + 1] + word[n] + word[n + 2 :]
    return word + word[-1:]


def _encode(numbers: Array) -> str:
    """Write numbers as the page reads them: float32, little-endian, in base64."""
    return base64.b64encode(np.ascontiguousarray(numbers, dtype="<f4").tobytes()).decode("ascii")

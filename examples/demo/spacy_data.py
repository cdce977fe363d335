"""Data that the page takes from spaCy: the tokenizer's rules, and entities that pipelines find."""

import re
from collections.abc import Sequence
from typing import Any

SENTENCES = (
    "John Smith left London in March for the coast of Brazil.",
    "The Bank of England lent the Washington Post ten million dollars.",
    "He sat on the bank of the river and looked at the water.",
    "The bank would not lend him any more money.",
)
# Python's classes cover Unicode. spaCy uses `\w` only inside `[...]`, so `[]` is not added.
JAVASCRIPT_CLASSES = {r"\w": r"\p{L}\p{N}_", r"\d": r"\p{Nd}"}


def read_tokenizer_rules() -> dict[str, Any]:
    """Return the rules of spaCy's English tokenizer, with regular expressions for JavaScript."""
    import spacy

    nlp = spacy.blank("en")
    tokenizer: Any = nlp.tokenizer
    orth = nlp.vocab.strings["ORTH"]
    patterns = {
        name: translate_pattern(getattr(tokenizer, method).__self__.pattern)
        for name, method in (
            ("prefix", "prefix_search"),
            ("suffix", "suffix_search"),
            ("infix", "infix_finditer"),
            ("url", "url_match"),
        )
    }
    exceptions = {
        text: [part[orth] for part in parts]
        for text, parts in tokenizer.rules.items()
        if not text.isspace()
    }
    return {**patterns, "exceptions": exceptions}


def translate_pattern(pattern: str) -> str:
    """Translate a regular expression of Python to one of JavaScript with the flag `u`."""

    def translate(match: re.Match[str]) -> str:
        escape = match[0]
        if escape.startswith(r"\U"):
            return rf"\u{{{int(escape[2:], 16):X}}}"
        if escape in JAVASCRIPT_CLASSES:
            return JAVASCRIPT_CLASSES[escape]
        return escape if re.match(r"\\[\w^$\\.*+?()\[\]{}|/-]", escape) else escape[1]

    return re.sub(r"\\(?:U[0-9A-Fa-f]{8}|.)", translate, pattern.removeprefix("(?u)"))


def find_entities(pipelines: Sequence[str]) -> list[dict[str, Any]]:
    """Find the entities of a few sentences.

    Args:
        pipelines: Folders or packages of pipelines that set entities, such as one with ELMo and
            one without.

    Returns:
        For each pipeline, its name and the sentences: the text of each, and the start, end and
        label of each entity.

    Raises:
        OSError: If there is no such pipeline.
    """
    import spacy

    return [
        {
            "pipeline": pipeline,
            "sentences": [
                {
                    "text": doc.text,
                    "entities": [(e.start_char, e.end_char, e.label_) for e in doc.ents],
                }
                for doc in spacy.load(pipeline).pipe(SENTENCES)
            ],
        }
        for pipeline in pipelines
    ]

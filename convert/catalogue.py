"""The published models: where their makers put them, in what format, under what licence."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from convert.layout import ConversionError

TABLE = "published_models.tsv"
TAKEN = "November 2026"  # from the makers' own pages and programs; no address could be tried then
SOFTMAX = "softmax"  # a format that is no model, but belongs to one
NO_SPACY_LANGUAGE = {"cu", "gl", "ug"}  # spaCy has no such language for a model card's example


@dataclass(frozen=True)
class Published:
    """A published model, or the softmax of one.

    Attributes:
        name: What `elmo-convert` takes as SOURCE.
        language: Code of its language; empty = none, or not known.
        language_name: Its language in words.
        format: Name of its format, "softmax", or empty for what cannot be converted.
        files: The addresses of each of its files, the first one first.
        options: Those of its options, if they are a file of their own.
        vocabulary: Those of its vocabulary, if it is a file of its own.
        bytes: Size of its only file; None = not known.
        sha256: Checksum of its only file; empty = not known.
        licence: As its makers state it.
        citation: What to cite; empty = nothing is named.
        listed_in: Where the addresses were found.
        note: What else one should know; for what cannot be converted, why.
    """

    name: str
    language: str
    language_name: str
    format: str
    files: tuple[tuple[str, ...], ...]
    options: tuple[str, ...]
    vocabulary: tuple[str, ...]
    bytes: int | None
    sha256: str
    licence: str
    citation: str
    listed_in: str
    note: str

    @property
    def hub_license(self) -> str | None:
        """The licence as the Hub names it; None where the makers state none for the weights."""
        return None if " " in self.licence else self.licence.lower()

    @property
    def languages(self) -> tuple[str, ...]:
        """The code of its language, if spaCy has it."""
        is_known = self.language and self.language not in NO_SPACY_LANGUAGE
        return (self.language,) if is_known else ()

    def describe(self) -> Iterator[str]:
        """Return a sentence each on language, licence and citation, for the model card."""
        yield f"Published as {self.name} ({self.language_name}; listed in {self.listed_in})."
        yield f"Licence as the makers state it: {self.licence}."
        if self.citation:
            yield f"Please cite: {self.citation}."


@cache
def read_catalogue() -> dict[str, Published]:
    """Read the published models, by name."""
    with (files("convert") / TABLE).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return {row["name"]: _read_row(row) for row in rows}


def _read_row(row: dict[str, str]) -> Published:
    options, vocabulary = (_read_addresses(row.pop(name)) for name in ("options", "vocabulary"))
    return Published(
        files=tuple(_read_addresses(item) for item in row.pop("files").split(" ")),
        options=options,
        vocabulary=vocabulary,
        bytes=int(size) if (size := row.pop("bytes")) else None,
        **row,
    )


def _read_addresses(item: str) -> tuple[str, ...]:
    """Read the addresses of a file, one after the other to try."""
    return tuple(filter(None, item.split("|")))


def find_published(name: str) -> Published | None:
    """Find a published model by its name; None if there is none of it.

    Raises:
        ConversionError: If it cannot be converted.
    """
    model = read_catalogue().get(name)
    if model is not None and not model.format:
        raise ConversionError(f"{name}: cannot be converted: {model.note}.")
    return model


def suggest_published(name: str) -> str:
    """Return a hint at published models of a similar name, or at the list of them."""
    similar = get_close_matches(name, read_catalogue(), n=3)
    hint = f"Did you mean {' or '.join(similar)}? " if similar else ""
    return f"{hint}elmo-convert --list-published lists what can be downloaded by name."


def make_table(language: str | None = None) -> str:
    """Return the published models as a table of lines.

    Args:
        language: Code of a language, or the beginning of its name; None = all.

    Raises:
        ConversionError: If there is no model of this language.
    """
    models = [
        model
        for model in read_catalogue().values()
        if language is None
        or language.lower() == model.language
        or model.language_name.lower().startswith(language.lower())
    ]
    if not models:
        codes = sorted({model.language for model in read_catalogue().values()} - {""})
        raise ConversionError(
            f"Expected a language of published models, {', '.join(codes)}; got {language}."
        )
    rows = [("NAME", "LANGUAGE", "FORMAT", "SIZE", "LICENCE", "NOTE")]
    for model in models:
        size = "?" if model.bytes is None else f"{model.bytes / 1e6:,.0f} MB"
        rows.append(
            (
                model.name,
                f"{model.language or '-':3} {model.language_name}",
                model.format or "-",
                size,
                model.licence,
                model.note,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
    lines.append(
        f"The list was taken from the makers' own pages in {TAKEN}; sizes are rarely told."
    )
    return "\n".join(line.rstrip() for line in lines)

"""Catalogue of published models: addresses, formats, licences."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from convert.checkpoint import ConversionError

TAKEN = "November 2026"  # date of the list; no address was tested
SOFTMAX = "softmax"  # format of a separate softmax file
NO_SPACY_LANGUAGE = {"cu", "gl", "ug"}  # languages that spaCy does not know


@dataclass(frozen=True)
class Published:
    """A published model or a separate softmax."""

    name: str  # for `elmo-convert`
    language: str  # code; empty = none or unknown
    language_name: str
    format: str  # empty = conversion not supported
    files: tuple[tuple[str, ...], ...]  # for each file, its addresses in order
    options: tuple[str, ...]  # addresses of a separate file
    vocabulary: tuple[str, ...]
    licence: str  # as the publisher states it
    citation: str
    listed_in: str  # source of the addresses
    note: str  # or the reason why the conversion is not supported

    @property
    def hub_license(self) -> str | None:
        """Licence identifier of the Hub; None = the publisher states no licence for the weights."""
        return None if " " in self.licence else self.licence.lower()

    @property
    def languages(self) -> list[str]:
        """Codes of the model's languages that spaCy knows."""
        return [x for x in (self.language,) if x and x not in NO_SPACY_LANGUAGE]

    def describe(self) -> Iterator[str]:
        """Yield sentences on language, licence and citation, for the model card."""
        yield f"Published as {self.name} ({self.language_name}; listed in {self.listed_in})."
        yield f"Licence as stated by the publisher: {self.licence}."
        if self.citation:
            yield f"Please cite: {self.citation}."


@cache
def read_catalogue() -> dict[str, Published]:
    """Read the catalogue: published models by name."""
    with (files("convert") / "published_models.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return {row["name"]: _read_row(row) for row in rows}


def _read_row(row: dict[str, str]) -> Published:
    def split(addresses: str) -> tuple[str, ...]:
        return tuple(filter(None, addresses.split("|")))

    return Published(
        files=tuple(map(split, row.pop("files").split(" "))),
        options=split(row.pop("options")),
        vocabulary=split(row.pop("vocabulary")),
        **row,
    )


def find_published(name: str) -> Published | None:
    """Find a published model by its name; None = not in the catalogue."""
    model = read_catalogue().get(name)
    if model is not None and not model.format:
        raise ConversionError(f"{name}: this model is not supported: {model.note}.")
    return model


def suggest_published(name: str) -> str:
    """Suggest published models with similar names, and the option that lists all."""
    similar = get_close_matches(name, read_catalogue(), n=3)
    hint = f"Did you mean {' or '.join(similar)}? " if similar else ""
    return f"{hint}elmo-convert --list-published lists all published models."


def make_table(language: str | None = None) -> str:
    """Make a text table of the catalogue; `language` is a code or the start of a name."""
    asked = (language or "").lower()
    models = [
        model
        for model in read_catalogue().values()
        if asked == model.language or model.language_name.lower().startswith(asked)
    ]
    if not models:
        codes = sorted({model.language for model in read_catalogue().values()} - {""})
        raise ConversionError(f"Expected a language, {', '.join(codes)}; got {language}.")
    rows = [("NAME", "LANGUAGE", "FORMAT", "LICENCE", "NOTE")]
    for model in models:
        languages = f"{model.language or '-':3} {model.language_name}"
        rows.append((model.name, languages, model.format or "-", model.licence, model.note))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, f"Collected from the publishers' pages in {TAKEN}."])

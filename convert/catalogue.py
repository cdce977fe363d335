"""Catalogue of published models: addresses, formats, licences."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from convert.layout import ConversionError

TABLE = "published_models.tsv"
TAKEN = "November 2026"  # date of the list; no address was tested
SOFTMAX = "softmax"  # format of a separate softmax file
NO_SPACY_LANGUAGE = {"cu", "gl", "ug"}  # languages that spaCy does not know


@dataclass(frozen=True)
class Published:
    """Entry of the catalogue: a published model or a separate softmax.

    Attributes:
        name: Name to pass to `elmo-convert`.
        language: Language code; empty = none or unknown.
        language_name: Language name.
        format: Name of the format, or "softmax"; empty = conversion not supported.
        files: For each file, its addresses in the order in which they are tried.
        options: Addresses of a separate options file.
        vocabulary: Addresses of a separate vocabulary file.
        bytes: Size of the file, if there is only one; None = unknown.
        sha256: Checksum of the file, if there is only one; empty = unknown.
        licence: Licence as the publisher states it.
        citation: Publication to cite; empty = unknown.
        listed_in: Source of the addresses.
        note: Further remarks, or the reason why the conversion is not supported.
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
        """Licence identifier of the Hub; None = the publisher states no licence for the weights."""
        return None if " " in self.licence else self.licence.lower()

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the model's languages that spaCy knows."""
        is_known = self.language and self.language not in NO_SPACY_LANGUAGE
        return (self.language,) if is_known else ()

    def describe(self) -> Iterator[str]:
        """Yield sentences on language, licence and citation, for the model card."""
        yield f"Published as {self.name} ({self.language_name}; listed in {self.listed_in})."
        yield f"Licence as stated by the publisher: {self.licence}."
        if self.citation:
            yield f"Please cite: {self.citation}."


@cache
def read_catalogue() -> dict[str, Published]:
    """Read the catalogue: published models by name."""
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
    """Read the addresses of a file, in the order in which they are tried."""
    return tuple(filter(None, item.split("|")))


def find_published(name: str) -> Published | None:
    """Find a published model by its name; None = not in the catalogue.

    Raises:
        ConversionError: If the model's conversion is not supported.
    """
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
    rows += [
        (
            model.name,
            f"{model.language or '-':3} {model.language_name}",
            model.format or "-",
            "?" if model.bytes is None else f"{model.bytes / 1e6:,.0f} MB",
            model.licence,
            model.note,
        )
        for model in models
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
    lines.append(
        f"The list was collected from the publishers' pages in {TAKEN}. Most sizes are unknown."
    )
    return "\n".join(line.rstrip() for line in lines)

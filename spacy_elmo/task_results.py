"""What a task model reads of a doc, and where in the doc its results go."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from spacy.tokens import Doc, Span

from .extensions import ROLES_KEY
from .segments import Segment

PREDICATES_NAME = "predicates"
CLUSTER_PREFIX = "coref_clusters_"


class Placed(NamedTuple):
    """An example of a task, made of a doc.

    Attributes:
        rows: Positions in the doc of the example's words.
        example: What the task reads.
    """

    rows: Segment
    example: Any


Read: TypeAlias = Callable[[Doc, list[Segment], Sequence[str]], list[Placed]]
Write: TypeAlias = Callable[[Doc, list[Placed], list[Any]], None]


class Annotator(NamedTuple):
    """How a task reads docs and writes results.

    Attributes:
        read: Makes examples of a doc's sentences; it gets the parts of speech of predicates too.
        write: Puts into a doc what was found of its examples.
        finds: The model's method that finds it.
    """

    read: Read
    write: Write
    finds: str = "predict"


def list_words(doc: Doc, rows: Segment) -> list[str]:
    """List the words at some positions."""
    return [doc[row].text for row in rows]


def _read_tagged(doc: Doc, segments: list[Segment], _: Sequence[str]) -> list[Placed]:
    from hf_elmo.tasks.data.readers import TaggedSentence

    return [Placed(rows, TaggedSentence(list_words(doc, rows), [])) for rows in segments]


def _write_entities(doc: Doc, placed: list[Placed], found: list[Any]) -> None:
    """Add entities to those that the doc has, where they do not overlap; spaCy's own does so."""
    taken = {token.i for entity in doc.ents for token in entity}
    spans = [
        Span(doc, rows[span.start], rows[span.end] + 1, label=span.label)
        for (rows, _), spans in zip(placed, found, strict=True)
        for span in spans
    ]
    free = [span for span in spans if taken.isdisjoint(range(span.start, span.end))]
    doc.set_ents([*doc.ents, *free])


def _read_labelled(doc: Doc, segments: list[Segment], _: Sequence[str]) -> list[Placed]:
    from hf_elmo.tasks.data.readers import LabelledSentence

    return [Placed(rows, LabelledSentence(list_words(doc, rows), "")) for rows in segments]


def _write_labels(doc: Doc, placed: list[Placed], found: list[Any]) -> None:
    names = found[0] if found else {}
    means = {name: sum(each[name] for each in found) / len(found) for name in names}
    doc.cats = {**doc.cats, **means}


def _read_frames(doc: Doc, segments: list[Segment], predicate_pos: Sequence[str]) -> list[Placed]:
    from hf_elmo.tasks.data.readers import Frame

    if PREDICATES_NAME in doc.spans:
        predicates = {span.start for span in doc.spans[PREDICATES_NAME]}
    elif doc.has_annotation("POS") or not segments:
        predicates = {token.i for token in doc if token.pos_ in predicate_pos}
    else:
        raise ValueError(
            "Expected a doc of which the predicates are known, to find their roles: put a "
            "component before this one that sets token.pos_, or name the predicates in "
            f"doc.spans[{PREDICATES_NAME!r}]."
        )
    return [
        Placed(rows, Frame(list_words(doc, rows), place, []))
        for rows in segments
        for place, row in enumerate(rows)
        if row in predicates
    ]


def _write_roles(doc: Doc, placed: list[Placed], found: list[Any]) -> None:
    listed = [
        [rows[frame.predicate], role.label, rows[role.start], rows[role.end] + 1]
        for (rows, frame), roles in zip(placed, found, strict=True)
        for role in roles
    ]
    doc.user_data[ROLES_KEY] = [len(doc), listed]  # places hold for as many tokens


def _read_document(doc: Doc, segments: list[Segment], _: Sequence[str]) -> list[Placed]:
    from hf_elmo.tasks.data.readers import Document

    rows = [row for segment in segments for row in segment]
    sentences = [list_words(doc, segment) for segment in segments]
    return [Placed(rows, Document("", sentences, []))] if rows else []


def _write_clusters(doc: Doc, placed: list[Placed], found: list[Any]) -> None:
    for name in [name for name in doc.spans if name.startswith(CLUSTER_PREFIX)]:
        del doc.spans[name]
    for (rows, _), clusters in zip(placed, found, strict=True):
        for number, cluster in enumerate(clusters, start=1):
            doc.spans[f"{CLUSTER_PREFIX}{number}"] = [
                doc[rows[start] : rows[end] + 1] for start, end in cluster
            ]


ANNOTATORS = {
    "ner": Annotator(_read_tagged, _write_entities),
    "sentiment": Annotator(_read_labelled, _write_labels, finds="rank"),
    "srl": Annotator(_read_frames, _write_roles),
    "coref": Annotator(_read_document, _write_clusters),
}

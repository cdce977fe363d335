"""Conversion of docs to examples of a task, and of predictions to annotations of docs."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from spacy.tokens import Doc, Span

from .extensions import ROLES_KEY
from .segments import Segment

if TYPE_CHECKING:  # as in stored_bilm.py
    from hf_elmo.tasks import labels
    from hf_elmo.tasks.readers import Document, Frame, LabelledSentence, TaggedSentence

PREDICATES_NAME = "predicates"
CLUSTER_PREFIX = "coref_clusters_"  # and a number
Example = TypeVar("Example")
Found = TypeVar("Found")


class Placed(NamedTuple, Generic[Example]):
    """An example of a task, made from a doc.

    Attributes:
        rows: Positions of the example's words in the doc.
        example: The example.
    """

    rows: Segment
    example: Example


class Annotator(NamedTuple, Generic[Example, Found]):
    """Functions of a task that read docs and write results.

    Attributes:
        read: Makes examples from a doc, its sentences, and the parts of speech of predicates, which
            only semantic roles need.
        write: Writes the predictions for a doc's examples to the doc.
        finds: Name of the model's method that predicts.
    """

    read: Callable[[Doc, list[Segment], Sequence[str]], list[Placed[Example]]]
    write: Callable[[Doc, list[Placed[Example]], list[Found]], None]
    finds: str = "predict"


def list_words(doc: Doc, rows: Segment) -> list[str]:
    """List the words of a doc at the given positions."""
    return [doc[row].text for row in rows]


def _read_tagged(
    doc: Doc, segments: list[Segment], _: Sequence[str]
) -> list[Placed["TaggedSentence"]]:
    from hf_elmo.tasks.readers import TaggedSentence

    return [Placed(rows, TaggedSentence(list_words(doc, rows), [])) for rows in segments]


def _write_entities(
    doc: Doc, placed: list[Placed["TaggedSentence"]], found: list[list["labels.Span"]]
) -> None:
    """Add entities that do not overlap the doc's earlier ones, as spaCy's own component does."""
    # Blocked: the user has marked that these tokens are no entity.
    blocked = [token.i for token in doc if token.ent_iob_ == "B" and not token.ent_type_]
    taken = {token.i for entity in doc.ents for token in entity} | {*blocked}
    spans = [
        Span(doc, rows[span.start], rows[span.end] + 1, label=span.label)
        for (rows, _), spans in zip(placed, found, strict=True)
        for span in spans
    ]
    free = [span for span in spans if taken.isdisjoint(range(span.start, span.end))]
    doc.set_ents([*doc.ents, *free], blocked=[doc[i : i + 1] for i in blocked])


def _read_labelled(
    doc: Doc, segments: list[Segment], _: Sequence[str]
) -> list[Placed["LabelledSentence"]]:
    from hf_elmo.tasks.readers import LabelledSentence

    return [Placed(rows, LabelledSentence(list_words(doc, rows), "")) for rows in segments]


def _write_labels(
    doc: Doc, placed: list[Placed["LabelledSentence"]], found: list[dict[str, float]]
) -> None:
    names = found[0] if found else {}
    means = {name: sum(each[name] for each in found) / len(found) for name in names}
    doc.cats = {**doc.cats, **means}


def _read_frames(
    doc: Doc, segments: list[Segment], predicate_pos: Sequence[str]
) -> list[Placed["Frame"]]:
    from hf_elmo.tasks.readers import Frame

    if PREDICATES_NAME in doc.spans:
        spans = doc.spans[PREDICATES_NAME]
        predicates = {next((token.i for token in span if not token.is_space), -1) for span in spans}
    elif doc.has_annotation("POS") or not segments:
        predicates = {token.i for token in doc if token.pos_ in predicate_pos}
    else:
        raise ValueError(
            "Expected a doc with known predicates, to find their roles: put a component before "
            f"this one that sets token.pos_, or list them in doc.spans[{PREDICATES_NAME!r}]."
        )
    return [
        Placed(rows, Frame(list_words(doc, rows), place, []))
        for rows in segments
        for place, row in enumerate(rows)
        if row in predicates
    ]


def _write_roles(doc: Doc, placed: list[Placed["Frame"]], found: list[list["labels.Span"]]) -> None:
    listed = [
        [rows[frame.predicate], role.label, rows[role.start], rows[role.end] + 1]
        for (rows, frame), roles in zip(placed, found, strict=True)
        for role in roles
    ]
    doc.user_data[ROLES_KEY] = [len(doc), listed]  # the indices are valid for this number of tokens


def _read_document(doc: Doc, segments: list[Segment], _: Sequence[str]) -> list[Placed["Document"]]:
    from hf_elmo.tasks.readers import Document

    rows = [row for segment in segments for row in segment]
    sentences = [list_words(doc, segment) for segment in segments]
    return [Placed(rows, Document("", sentences, []))] if rows else []


def _write_clusters(
    doc: Doc, placed: list[Placed["Document"]], found: list[list[list[tuple[int, int]]]]
) -> None:
    for name in [name for name in doc.spans if re.fullmatch(rf"{CLUSTER_PREFIX}\d+", name)]:
        del doc.spans[name]
    for (rows, _), clusters in zip(placed, found, strict=True):
        for number, cluster in enumerate(clusters, start=1):
            doc.spans[f"{CLUSTER_PREFIX}{number}"] = [
                doc[rows[start] : rows[end] + 1] for start, end in cluster
            ]


ENTITIES = Annotator(_read_tagged, _write_entities)
LABELS = Annotator(_read_labelled, _write_labels, finds="rank")
ROLES = Annotator(_read_frames, _write_roles)
CLUSTERS = Annotator(_read_document, _write_clusters)
ANNOTATORS: dict[str, Annotator[Any, Any]] = {
    "ner": ENTITIES,
    "sentiment": LABELS,
    "srl": ROLES,
    "coref": CLUSTERS,
}

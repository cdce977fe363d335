"""The tasks, variants and runs that `compare.py` compares, and the metrics."""

from collections.abc import Callable
from typing import Any, NamedTuple

from spacy.tokens import Doc

# Variants with the end of their configuration's name.
VARIANTS = {"without": "", "static": "", "with": "_elmo", "both": "_elmo"}
LABELS = {
    "without": "no vectors",
    "static": "static vectors",
    "with": "ELMo",
    "both": "static vectors and ELMo",
}
WITH_VECTORS = ("static", "both")
# Pairs that are compared: the last one whose runs are there.
PAIRS = (("without", "with"), ("static", "with"), ("static", "both"))
SHARES = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
CURVE_TASK = "trec"

Facts = set[tuple[Any, ...]]


def find_tags(doc: Doc) -> Facts:
    return {(token.i, token.tag_) for token in doc}


def find_morphs(doc: Doc) -> Facts:
    return {(token.i, str(token.morph)) for token in doc}


def find_lemmas(doc: Doc) -> Facts:
    return {(token.i, token.lemma_) for token in doc}


def find_arcs(doc: Doc) -> Facts:
    """Find all dependency arcs except punctuation, like spaCy's scorer."""
    return {(t.i, t.head.i, t.dep_.lower()) for t in doc if t.dep_.lower() not in ("p", "punct")}


def find_heads(doc: Doc) -> Facts:
    return {(child, head) for child, head, _ in find_arcs(doc)}


def find_sentences(doc: Doc) -> Facts:
    return {(span.start, span.end) for span in doc.sents}


def find_entities(doc: Doc) -> Facts:
    return {(span.start, span.end, span.label_) for span in doc.ents}


def find_spans(doc: Doc) -> Facts:
    return {(span.start, span.end, span.label_) for span in doc.spans.get("sc", ())}


def find_category(doc: Doc) -> Facts:
    return {(max(doc.cats, key=doc.cats.__getitem__),)}


# Facts that each metric of a configuration compares. If each token or doc has exactly one fact,
# such as a tag, F1 equals accuracy.
METRICS: dict[str, dict[str, Callable[[Doc], Facts]]] = {
    "ewt": {"tag accuracy": find_tags, "lemma accuracy": find_lemmas, "LAS": find_arcs},
    "ner": {"entity F1": find_entities},
    "textcat": {"accuracy": find_category},
    "spancat": {"span F1": find_spans},
    "english": {
        "tag accuracy": find_tags,
        "morphology accuracy": find_morphs,
        "lemma accuracy": find_lemmas,
        "UAS": find_heads,
        "LAS": find_arcs,
        "F1 of sentences": find_sentences,
        "entity F1": find_entities,
    },
}
# A gold doc without this attribute is not counted: a joined corpus has docs of several tasks.
ATTRIBUTES: dict[Callable[[Doc], Facts], str] = {
    find_tags: "TAG",
    find_morphs: "MORPH",
    find_lemmas: "LEMMA",
    find_heads: "DEP",
    find_arcs: "DEP",
    find_sentences: "DEP",
    find_entities: "ENT_IOB",
}


class Task(NamedTuple):
    """A task: its title, its configuration, and its files relative to CORPUS."""

    title: str
    config: str
    train: str
    dev: str
    test: str


def _task(name: str, title: str, config: str) -> Task:
    return Task(title, config, *(f"{name}/{split}.spacy" for split in ("train", "dev", "test")))


TASKS = {
    "ewt": _task("ewt", "UD English EWT", "ewt"),
    "wnut17": _task("wnut17", "WNUT-17", "ner"),
    "wikigold": _task("wikigold", "WikiGold", "ner"),
    "sst5": _task("sst5", "SST-5", "textcat"),
    "trec": _task("trec", "TREC, 6 classes", "textcat"),
    "litbank": _task("litbank", "LitBank, nested", "spancat"),
}


class Run(NamedTuple):
    """One training run."""

    task: str
    variant: str
    seed: int
    share: float = 1.0

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.task}-{self.variant}-{self.seed}-{self.share:g}"


def count(find: Callable[[Doc], Facts], found: Doc, gold: Doc) -> tuple[int, int, int]:
    """Count the correct, found and gold facts of a doc; none without a gold annotation."""
    if find in ATTRIBUTES and not gold.has_annotation(ATTRIBUTES[find]):
        return 0, 0, 0
    a, b = find(found), find(gold)
    return len(a & b), len(a), len(b)

"""Small pipelines in which a tagger listens to ELMo, and what they are trained on."""

from collections.abc import Sequence
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Model

LISTENER = {"@architectures": "spacy_elmo.ElmoListener.v1"}
WORDS = [["The", "bank", " ", "raised", "rates"], [], ["bank"], [" "], ["A", "river", "bank"]]
TAGS = {"The": "D", "A": "D", "raised": "V", " ": "_"}


def add_tagger(nlp: Language, name: str = "tagger", **settings: Any) -> Any:
    return nlp.add_pipe("tagger", name, config={"model": {"tok2vec": {**LISTENER, **settings}}})


def get_listener(component: Any) -> Model[Any, Any]:
    (listener,) = [node for node in component.model.walk() if node.name == "elmo-listener"]
    return listener


def make_examples(nlp: Language) -> list[Example]:
    return [
        Example.from_dict(Doc(nlp.vocab, words=words), {"tags": [TAGS.get(w, "N") for w in words]})
        for words in WORDS
    ]


def initialize(nlp: Language) -> tuple[list[Example], Any]:
    examples = make_examples(nlp)
    return examples, nlp.initialize(lambda: examples)


def predict(nlp: Language, docs: Sequence[Doc] | None = None) -> list[Any]:
    """Return the scores of both taggers for fresh docs."""
    results = []
    for name in ("tagger", "tagger2"):
        docs = [Doc(nlp.vocab, words=words) for words in WORDS]
        results += nlp.get_pipe(name).model.predict(docs)
    return results

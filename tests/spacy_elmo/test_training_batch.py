import numpy as np
import pytest
from spacy.language import Language
from spacy.tokens import Doc

from spacy_elmo.architecture import Array, DocLayers
from spacy_elmo.training_batch import TrainingBatch

SEGMENTS = [[0, 1]]


@pytest.fixture
def doc(nlp: Language) -> Doc:
    return Doc(nlp.vocab, words=["The", "bank"])


@pytest.fixture
def layers() -> Array:
    return np.arange(12, dtype="f").reshape(3, 2, 2)


def test_batch_adds_up_what_its_listeners_send(nlp: Language, layers: Array) -> None:
    docs = [Doc(nlp.vocab, words=["The", "bank"]) for _ in range(2)]
    sent: list[list[Array]] = []
    batch = TrainingBatch(docs, [DocLayers(layers, SEGMENTS)] * 2, sent.append)
    ones = np.ones_like(layers)
    assert batch.receive([docs[1]], [ones]) == ones.size
    batch.receive(docs, [ones, ones])
    batch.backpropagate()
    ((first, second),) = sent
    np.testing.assert_array_equal(first, ones)
    np.testing.assert_array_equal(second, 2 * ones)


def test_batch_leaves_aside_docs_that_are_not_its_own(doc: Doc, layers: Array) -> None:
    batch = TrainingBatch([doc], [DocLayers(layers, SEGMENTS)], lambda gradients: None)
    assert batch.find(doc.copy()) is None
    assert batch.receive([doc.copy()], [layers]) == 0

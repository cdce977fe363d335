import gc

import numpy as np
import pytest
from spacy.language import Language
from spacy.tokens import Doc

from spacy_elmo.architecture import Array, DocLayers
from spacy_elmo.desk import LayerDesk, TrainingBatch

SEGMENTS = [[0, 1]]


@pytest.fixture
def doc(nlp: Language) -> Doc:
    return Doc(nlp.vocab, words=["The", "bank"])


@pytest.fixture
def layers() -> Array:
    return np.arange(12, dtype="f").reshape(3, 2, 2)


def test_layers_lie_there_until_the_last_listener_has_read_them(doc: Doc, layers: Array) -> None:
    desk = LayerDesk()
    desk.put(doc, SEGMENTS, layers, 2)
    assert desk.take(doc) == DocLayers(layers, SEGMENTS)
    assert desk.take(doc) is not None
    assert desk.take(doc) is None


def test_layers_without_listeners_are_not_held(doc: Doc, layers: Array) -> None:
    desk = LayerDesk()
    desk.put(doc, SEGMENTS, layers, 0)
    assert desk.take(doc) is None


def test_sentences_stay_noted(doc: Doc) -> None:
    desk = LayerDesk()
    desk.put(doc, SEGMENTS, None, 0)
    assert desk.get_segments(doc) == SEGMENTS


def test_oldest_layers_go_where_there_is_no_room(nlp: Language, layers: Array) -> None:
    desk = LayerDesk(max_bytes=2 * layers.nbytes)
    docs = [Doc(nlp.vocab, words=["The", "bank"]) for _ in range(3)]
    for doc in docs:
        desk.put(doc, SEGMENTS, layers, 1)
    desk.tidy()
    assert [desk.take(doc) is not None for doc in docs] == [False, True, True]


def test_layers_go_with_their_doc(nlp: Language, layers: Array) -> None:
    desk = LayerDesk()
    desk.put(Doc(nlp.vocab, words=["The", "bank"]), SEGMENTS, layers, 1)
    gc.collect()
    assert len(desk._places) == 0


def test_layers_of_a_retokenized_doc_are_not_given(doc: Doc, layers: Array) -> None:
    desk = LayerDesk()
    desk.put(doc, SEGMENTS, layers, 1)
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:2])
    assert desk.take(doc) is None
    assert desk.get_segments(doc) is None


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

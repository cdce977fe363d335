import gc

import numpy as np
import pytest
from spacy.language import Language
from spacy.tokens import Doc

from spacy_elmo.architecture import Array, DocLayers
from spacy_elmo.layers_for_listeners import HeldLayers

SEGMENTS = [[0, 1]]


@pytest.fixture
def doc(nlp: Language) -> Doc:
    return Doc(nlp.vocab, words=["The", "bank"])


@pytest.fixture
def layers() -> Array:
    return np.arange(12, dtype="f").reshape(3, 2, 2)


def test_layers_are_held_until_the_last_listener_has_read_them(doc: Doc, layers: Array) -> None:
    held = HeldLayers()
    held.hold(doc, SEGMENTS, layers, 2)
    assert held.take(doc) == DocLayers(layers, SEGMENTS)
    assert held.take(doc) is not None
    assert held.take(doc) is None


def test_layers_without_listeners_are_not_held(doc: Doc, layers: Array) -> None:
    held = HeldLayers()
    held.hold(doc, SEGMENTS, layers, 0)
    assert held.take(doc) is None


def test_sentences_stay_noted(doc: Doc) -> None:
    held = HeldLayers()
    held.hold(doc, SEGMENTS, None, 0)
    assert held.get_segments(doc) == SEGMENTS


def test_sentences_stay_noted_when_layers_are_computed_again(doc: Doc, layers: Array) -> None:
    held = HeldLayers()
    held.hold(doc, SEGMENTS, None, 0)
    held.hold(doc, SEGMENTS, layers, 1, is_noted=False)
    held.take(doc)
    assert held.get_segments(doc) == SEGMENTS


def test_sentences_of_a_doc_that_is_not_noted_go_with_its_layers(doc: Doc, layers: Array) -> None:
    held = HeldLayers()
    held.hold(doc, SEGMENTS, layers, 1, is_noted=False)
    assert held.get_segments(doc) == SEGMENTS
    held.take(doc)
    assert held.get_segments(doc) is None
    held.hold(doc, SEGMENTS, layers, 1, is_noted=False)
    held.hold(doc, [[0], [1]], None, 0, is_noted=False)
    assert held.get_segments(doc) is None


def test_layers_that_are_replaced_take_no_room(nlp: Language, layers: Array) -> None:
    held = HeldLayers(max_bytes=2 * layers.nbytes)
    docs = [Doc(nlp.vocab, words=["The", "bank"]) for _ in range(3)]
    for doc in docs:
        held.hold(doc, SEGMENTS, layers, 1)
    held.hold(docs[1], SEGMENTS, None, 0)
    held.trim()
    assert [held.take(doc) is not None for doc in docs] == [True, False, True]


def test_oldest_layers_go_where_there_is_no_room(nlp: Language, layers: Array) -> None:
    held = HeldLayers(max_bytes=2 * layers.nbytes)
    docs = [Doc(nlp.vocab, words=["The", "bank"]) for _ in range(3)]
    for doc in docs:
        held.hold(doc, SEGMENTS, layers, 1)
    held.trim()
    assert [held.take(doc) is not None for doc in docs] == [False, True, True]
    with pytest.warns(UserWarning, match="computed again for each component"):
        held.warn_of_trimmed(docs)


def test_trimming_visits_docs_with_unread_layers_alone(nlp: Language, layers: Array) -> None:
    held = HeldLayers(max_bytes=layers.nbytes)
    docs = [Doc(nlp.vocab, words=["The", "bank"]) for _ in range(4)]
    for doc, num_readers in zip(docs, (0, 1, 1, 1), strict=True):
        held.hold(doc, SEGMENTS, layers, num_readers)
    held.take(docs[1])
    held.trim()
    assert list(held._unread) == docs[3:]


@pytest.mark.filterwarnings("error")
def test_layers_that_nobody_reads_are_dropped_in_silence(nlp: Language, layers: Array) -> None:
    held = HeldLayers(max_bytes=layers.nbytes)
    docs = [Doc(nlp.vocab, words=["The", "bank"]) for _ in range(3)]  # read by a linker's own docs
    for doc in docs:
        held.hold(doc, SEGMENTS, layers, 1)
        held.trim()
    assert list(held._unread) == docs[2:]


def test_nothing_is_held_after_a_clearing(doc: Doc, layers: Array) -> None:
    held = HeldLayers()
    held.hold(doc, SEGMENTS, layers, 1)
    held.clear()
    assert held.get_segments(doc) is None
    assert len(held._unread) == 0


def test_layers_go_with_their_doc(nlp: Language, layers: Array) -> None:
    held = HeldLayers()
    held.hold(Doc(nlp.vocab, words=["The", "bank"]), SEGMENTS, layers, 1)
    gc.collect()
    assert len(held._docs) == 0


def test_layers_of_a_retokenized_doc_are_not_given(doc: Doc, layers: Array) -> None:
    held = HeldLayers()
    held.hold(doc, SEGMENTS, layers, 1)
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:2])
    assert held.take(doc) is None
    assert held.get_segments(doc) is None


def test_layers_of_a_doc_split_and_merged_to_as_many_tokens_are_not_given(
    nlp: Language, layers: Array
) -> None:
    doc = Doc(nlp.vocab, words=["The", "river", "bank"])
    held = HeldLayers()
    held.hold(doc, SEGMENTS, layers, 1)
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:2])
        retokenizer.split(doc[2], ["ba", "nk"], heads=[(doc[2], 1), doc[0]])
    assert len(doc) == 3
    assert held.take(doc) is None

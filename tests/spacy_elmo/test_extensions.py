from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from spacy.language import Language
from spacy.tokens import Doc

from spacy_elmo.extensions import register_extensions


@pytest.fixture
def doc(nlp: Language) -> Doc:
    register_extensions()
    doc = Doc(nlp.vocab, words=["The", " ", "bank"])
    doc.tensor = np.array([[1, 2], [0, 0], [3, 4]], dtype="f")
    return doc


def test_token_has_its_row(doc: Doc) -> None:
    assert_allclose(doc[2]._.elmo, [3, 4])


def test_spans_and_docs_have_the_mean_of_their_words(doc: Doc) -> None:
    assert_allclose(doc._.elmo, [2, 3])
    assert_allclose(doc[1:3]._.elmo, [3, 4])
    assert_allclose(doc[1:2]._.elmo, [0, 0])


def test_vectors_beside_the_tensor_go_first(doc: Doc) -> None:
    doc._.elmo_vectors = doc.tensor + 1
    assert_allclose(doc[0]._.elmo, [2, 3])


def test_missing_layers_are_an_error_that_names_the_setting(doc: Doc) -> None:
    with pytest.raises(ValueError, match="store_layers = true"):
        _ = doc._.elmo_layers


def test_missing_vectors_are_an_error_that_names_the_component(nlp: Language) -> None:
    register_extensions()
    with pytest.raises(ValueError, match="run the 'elmo' component"):
        _ = Doc(nlp.vocab, words=["bank"])[0]._.elmo


def test_layers_of_a_retokenized_doc_are_an_error(doc: Doc) -> None:
    doc._.elmo_layers = np.zeros((3, 3, 2), dtype="f")
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:2])
    with pytest.raises(ValueError, match="Expected ELMo vectors for 2 tokens, got 3"):
        _ = doc._.elmo_layers


def test_extensions_can_be_registered_twice(doc: Doc, tmp_path: Path) -> None:
    register_extensions()
    assert_allclose(doc[0]._.elmo, [1, 2])

from pathlib import Path

import numpy as np
import pytest
from spacy.language import Language
from spacy.tokens import Doc

from spacy_elmo.extensions import put_vectors, register_extensions
from spacy_elmo.similarity import add_similarity_hooks


@pytest.fixture
def pipeline(nlp: Language, tiny_folder: Path) -> Language:
    config = {"model": {"name": str(tiny_folder)}, "mix": {"layers": [-1]}}
    nlp.add_pipe("elmo", config=config)
    return nlp


def test_equal_words_are_equal_to_spacy_without_hooks(pipeline: Language) -> None:
    doc = pipeline("the river bank by the bank")
    assert doc[2].similarity(doc[5]) == 1.0


def test_two_banks_differ_with_hooks(pipeline: Language) -> None:
    pipeline.add_pipe("elmo_similarity")
    doc = pipeline("the river bank by the bank")
    assert -1 < doc[2].similarity(doc[5]) < 0.999
    assert doc[2].similarity(doc[2]) == pytest.approx(1)


def test_hooks_compare_docs_spans_and_tokens(pipeline: Language) -> None:
    doc = add_similarity_hooks(pipeline("the river bank"))
    assert doc[1:3].similarity(doc[1:3]) == pytest.approx(1)
    assert doc.similarity(doc[:]) == pytest.approx(1)
    assert doc[2].similarity(doc) == pytest.approx(doc.similarity(doc[2]))


def test_white_space_is_similar_to_nothing(pipeline: Language) -> None:
    doc = pipeline.get_pipe("elmo")(Doc(pipeline.vocab, words=["bank", " "]))
    add_similarity_hooks(doc)
    assert doc[0].similarity(doc[1]) == 0


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_vectors_of_large_numbers_can_be_compared(nlp: Language, dtype: str) -> None:
    register_extensions()
    doc = add_similarity_hooks(Doc(nlp.vocab, words=["a", "b"]))
    large = float(np.finfo(dtype).max) / 4
    put_vectors(doc, np.array([[large, 0], [large, large]], dtype=dtype))
    assert doc[0].similarity(doc[1]) == pytest.approx(0.5**0.5)


def test_lexemes_cannot_be_compared(pipeline: Language) -> None:
    doc = add_similarity_hooks(pipeline("bank"))
    with pytest.raises(TypeError, match="got a Lexeme"):
        doc[0].similarity(pipeline.vocab["bank"])


def test_docs_from_other_processes_take_hooks_anew(pipeline: Language) -> None:
    (doc,) = pipeline.pipe(["the river bank by the bank"], n_process=2)
    add_similarity_hooks(doc)
    assert doc[2].similarity(doc[5]) < 0.999

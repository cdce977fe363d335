"""Other people's programs over the model; each test runs where its program is installed."""

from pathlib import Path

import numpy as np
import pytest
import spacy
import torch
from numpy.testing import assert_allclose
from spacy.language import Language

from hf_elmo import ElmoForSequenceClassification, ElmoModel, ElmoTokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # theirs
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
TEXTS = ["The bank raised its interest rates.", "A river bank", ""]


@pytest.fixture
def pipeline(tiny_folder: Path) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"name": str(tiny_folder)}})
    return nlp


def test_sentence_transformers_take_the_mean_of_the_top_layer(
    tiny_folder: Path, tmp_path: Path
) -> None:
    program = pytest.importorskip("sentence_transformers")
    encoder = program.SentenceTransformer(str(tiny_folder), device="cpu")
    vectors = encoder.encode(TEXTS)
    model, tokenizer = ElmoModel.from_pretrained(tiny_folder).eval(), ElmoTokenizer()
    for text, vector in zip(TEXTS[:2], vectors, strict=False):
        with torch.no_grad():
            top = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        assert_allclose(vector, top.mean(0), atol=1e-5)
    assert np.isfinite(vectors).all()  # of no word too
    encoder.save(str(tmp_path / "saved"))
    again = program.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert_allclose(again.encode(TEXTS), vectors, atol=1e-5)


def test_cross_encoders_say_that_they_need_pairs(tiny_model: ElmoModel, tmp_path: Path) -> None:
    program = pytest.importorskip("sentence_transformers")
    ElmoForSequenceClassification(tiny_model.config).save_pretrained(tmp_path)
    ElmoTokenizer().save_pretrained(tmp_path)
    encoder = program.CrossEncoder(str(tmp_path), device="cpu")
    with pytest.raises((TypeError, ValueError), match="A biLM reads one text at a time"):
        encoder.predict([("The bank", "A river bank")])


def test_keybert_finds_keywords_by_a_pipeline(pipeline: Language) -> None:
    program = pytest.importorskip("keybert")
    found = program.KeyBERT(pipeline).extract_keywords(TEXTS[0], top_n=3)
    assert {word for word, _ in found} <= {"bank", "raised", "interest", "rates"}
    assert len(found) == 3
    assert all(-1 <= score <= 1 for _, score in found)


def test_scikit_learn_classifies_by_the_vectors_of_docs(pipeline: Language) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    texts = [f"{word} {number}" for word in ("bank", "river") for number in range(10)]
    vectors = np.stack([doc.vector for doc in pipeline.pipe(texts)])
    labels = [0] * 10 + [1] * 10
    classifier = linear_model.LogisticRegression(C=1e6, max_iter=10_000).fit(vectors, labels)
    assert classifier.score(vectors, labels) == 1.0

import numpy as np
import pytest
from numpy.testing import assert_allclose
from spacy.language import Language
from spacy.tokens import Doc
from spacy.vectors import Vectors

from spacy_elmo.extensions import _count_characters, put_vectors, register_extensions


@pytest.fixture
def doc(nlp: Language) -> Doc:
    register_extensions()
    doc = Doc(nlp.vocab, words=["The", " ", "bank"])
    put_vectors(doc, np.array([[1, 2], [0, 0], [3, 4]], dtype="f"))
    return doc


def test_token_has_its_row(doc: Doc) -> None:
    assert_allclose(doc[2]._.elmo, [3, 4])


@pytest.mark.parametrize("words", [[], [" "], ["\U0001f600", "e\u0301", "\n"], ["a", "b"]])
def test_the_characters_of_a_doc_are_counted_without_its_text(
    nlp: Language, words: list[str]
) -> None:
    for spaces in ([True] * len(words), [False] * len(words)):
        doc = Doc(nlp.vocab, words=words, spaces=spaces)
        assert _count_characters(doc) == len(doc.text)


def test_spans_and_docs_have_the_mean_of_their_words(doc: Doc) -> None:
    assert_allclose(doc._.elmo, [2, 3])
    assert_allclose(doc[1:3]._.elmo, [3, 4])
    assert_allclose(doc[1:2]._.elmo, [0, 0])


def test_white_space_with_a_vector_is_left_out_of_the_mean_too(doc: Doc) -> None:
    doc._.elmo_vectors = np.array([[1, 2], [100, 100], [3, 4]], dtype="f")
    assert_allclose(doc._.elmo, [2, 3])
    assert_allclose(doc[1:2]._.elmo, [0, 0])


def test_vectors_beside_the_tensor_go_first(doc: Doc) -> None:
    doc._.elmo_vectors = doc.tensor + 1
    assert_allclose(doc[0]._.elmo, [2, 3])


def test_vectors_are_those_that_were_set_last(doc: Doc) -> None:
    doc._.elmo_vectors = doc.tensor + 1
    put_vectors(doc, doc.tensor + 2)
    assert_allclose(doc[0]._.elmo, [3, 4])


def test_vectors_that_are_removed_are_not_read_from_the_tensor(doc: Doc) -> None:
    doc._.elmo_vectors = None
    with pytest.raises(ValueError, match="holds no ELMo vectors"):
        _ = doc._.elmo


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


def test_vectors_of_a_split_doc_are_an_error(doc: Doc) -> None:
    with doc.retokenize() as retokenizer:
        retokenizer.split(doc[2], ["ba", "nk"], heads=[(doc[2], 1), doc[0]])
    with pytest.raises(ValueError, match=r"for 4 tokens, got \d: the doc was split or merged"):
        _ = doc._.elmo


def test_extensions_can_be_registered_twice(doc: Doc) -> None:
    register_extensions()
    assert_allclose(doc[0]._.elmo, [1, 2])


def test_attribute_of_another_program_is_an_error_that_names_it() -> None:
    register_extensions()
    own = Doc.get_extension("elmo")
    Doc.set_extension("elmo", default="theirs", force=True)
    try:
        with pytest.raises(ValueError, match=r"Doc\.remove_extension\('elmo'\)"):
            register_extensions()
        assert Doc.get_extension("elmo")[0] == "theirs"
    finally:
        Doc.set_extension("elmo", getter=own[2], force=True)


# Tensors of other components


def test_tensor_of_another_component_is_not_taken_for_elmos(nlp: Language) -> None:
    register_extensions()
    doc = Doc(nlp.vocab, words=["A", "bank"])
    doc.tensor = np.ones((2, 96), dtype="f")
    with pytest.raises(ValueError, match=r"shape \(2, 96\), is not known to be ELMo's"):
        _ = doc._.elmo


def test_tensor_that_another_component_has_replaced_is_not_taken_for_elmos(doc: Doc) -> None:
    doc.tensor = np.ones((3, 96), dtype="f")
    with pytest.raises(ValueError, match="is not known to be ELMo's"):
        _ = doc._.elmo


def test_a_wider_tensor_with_the_same_maximum_is_not_taken_for_elmos(doc: Doc) -> None:
    doc.tensor = np.concatenate([doc.tensor, doc.tensor], axis=1)
    with pytest.raises(ValueError, match="not known to be ELMo's"):
        _ = doc._.elmo


@pytest.mark.parametrize("maximum", [6, 2.1])
def test_tensor_of_another_pipeline_is_not_taken_for_elmos(doc: Doc, maximum: float) -> None:
    doc.tensor = np.array([[1, maximum], [7, 8], [3, 4]], dtype="f")  # of the same shape
    with pytest.raises(ValueError, match="not known to be ELMo's"):
        _ = doc._.elmo


def test_a_rounded_tensor_is_still_elmos(doc: Doc) -> None:
    doc.tensor = (doc.tensor / 3).astype("float16") * 3
    assert_allclose(doc[2]._.elmo, [3, 4], rtol=1e-3)


def test_the_mean_of_a_rounded_tensor_is_not_rounded(nlp: Language) -> None:
    doc = Doc(nlp.vocab, words=["bank"] * 5000)
    put_vectors(doc, np.full((5000, 2), 1.5, dtype="f"))
    doc.tensor = doc.tensor.astype("float16")
    assert_allclose(doc._.elmo, [1.5, 1.5])


def test_docs_that_are_stored_joined_or_cut_keep_their_vectors(doc: Doc) -> None:
    stored = Doc(doc.vocab).from_bytes(doc.to_bytes())
    joined = Doc.from_docs([doc, doc])
    part = doc[2:3].as_doc(copy_user_data=True)
    assert_allclose(stored._.elmo_vectors, doc.tensor)
    assert_allclose(joined._.elmo_vectors, [*doc.tensor, *doc.tensor])
    assert_allclose(part._.elmo_vectors, doc.tensor[2:])


def test_vectors_beside_the_tensor_do_not_go_along_when_docs_are_joined_or_cut(doc: Doc) -> None:
    doc._.elmo_vectors = doc.tensor
    doc.tensor = np.ones((3, 96), dtype="f")
    with pytest.warns(UserWarning, match=r"'elmo_vectors'.{,30}$"):
        joined = Doc.from_docs([doc, doc])
    for other in (joined, doc[:2].as_doc(), doc[:2].as_doc(copy_user_data=True)):
        with pytest.raises(ValueError, match="This doc holds no ELMo vectors"):
            _ = other._.elmo


def test_layers_of_a_part_of_a_doc_are_said_to_be_lost(doc: Doc) -> None:
    doc._.elmo_layers = np.zeros((3, 3, 2), dtype="f")
    with pytest.raises(ValueError, match="cut out of another, have lost theirs"):
        _ = doc[:2].as_doc(copy_user_data=True)._.elmo_layers


@pytest.mark.parametrize("has_static", [False, True])
def test_doc_vector_is_the_same_in_a_stored_doc(doc: Doc, has_static: bool) -> None:
    if has_static:
        doc.vocab.vectors = Vectors(data=np.ones((1, 4), dtype="f"), keys=["bank"])
    stored = Doc(doc.vocab).from_bytes(doc.to_bytes())
    assert_allclose(doc.vector, stored.vector)
    assert doc.vector_norm == pytest.approx(stored.vector_norm)


def test_vectors_of_a_doc_that_was_merged_are_refused(doc: Doc) -> None:
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:2])
    with pytest.raises(ValueError, match="Expected ELMo vectors for 2 tokens, got 3"):
        _ = doc[0]._.elmo

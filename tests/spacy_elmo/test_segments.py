import pytest
from spacy.language import Language
from spacy.tokens import Doc

from spacy_elmo.segments import find_segments

WORDS = ["A", "bank", ".", " ", "Two", "banks", ".", "\n"]
STARTS = [True, False, False, False, True, False, False, False]


@pytest.fixture
def doc(nlp: Language) -> Doc:
    return Doc(nlp.vocab, words=WORDS, sent_starts=STARTS)


@pytest.mark.parametrize("segment", ["auto", "sents"])
def test_sentences_are_read_where_they_are_set(doc: Doc, segment: str) -> None:
    assert find_segments(doc, segment, None) == [[0, 1, 2], [4, 5, 6]]


def test_whole_doc_is_read_if_asked_for(doc: Doc) -> None:
    assert find_segments(doc, "doc", None) == [[0, 1, 2, 4, 5, 6]]


def test_auto_reads_the_whole_doc_where_no_sentences_are_set(nlp: Language) -> None:
    assert find_segments(Doc(nlp.vocab, words=WORDS), "auto", None) == [[0, 1, 2, 4, 5, 6]]


def test_asking_for_sentences_that_nothing_has_set_is_an_error(nlp: Language) -> None:
    with pytest.raises(ValueError, match="Put a 'sentencizer', 'senter' or 'parser' before"):
        find_segments(Doc(nlp.vocab, words=WORDS), "sents", None)


def test_sentences_of_a_user_hook_are_read(nlp: Language) -> None:
    doc = Doc(nlp.vocab, words=WORDS)
    doc.user_hooks["sents"] = lambda doc: [doc[:2], doc[2:]]
    assert find_segments(doc, "auto", None) == [[0, 1], [2, 4, 5, 6]]


@pytest.mark.parametrize("words", [[], [" "], ["\n", " \t"]])
@pytest.mark.parametrize("segment", ["auto", "doc"])
def test_docs_without_words_have_no_segments(nlp: Language, words: list[str], segment: str) -> None:
    assert find_segments(Doc(nlp.vocab, words=words), segment, None) == []


def test_longer_sentences_are_cut(doc: Doc) -> None:
    assert find_segments(doc, "doc", 4) == [[0, 1, 2, 4], [5, 6]]

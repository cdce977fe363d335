"""Data that the demo takes from spaCy."""

from pathlib import Path

import pytest
import spacy
import spacy_data
from spacy_data import find_entities, read_tokenizer_rules, translate_pattern


@pytest.mark.parametrize(
    ("python", "javascript"),
    [
        (r"\!|\"|\'|\:", r"""!|"|'|:"""),
        (r"\(\)\[\]\{\}\.\+\*\?\$\^\|\\\/", r"\(\)\[\]\{\}\.\+\*\?\$\^\|\\\/"),
        (r"(?u)[\w\-]\d{2}", r"[\p{L}\p{N}_\-]\p{Nd}{2}"),
        (r"\u00a6\U0001F23B\S", r"\u00a6\u{1F23B}\S"),
    ],
)
def test_patterns_are_translated_to_javascript(python: str, javascript: str) -> None:
    assert translate_pattern(python) == javascript


def test_exceptions_are_those_of_spacy() -> None:
    exceptions = read_tokenizer_rules()["exceptions"]
    assert exceptions["don't"] == ["do", "n't"]
    assert exceptions["Dr."] == ["Dr."]


def test_entities_of_each_pipeline_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nlp = spacy.blank("en")
    nlp.to_disk(tmp_path / "without")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "PLACE", "pattern": "London"}])
    nlp.to_disk(tmp_path / "with")
    monkeypatch.setattr(spacy_data, "SENTENCES", ("Go to London",))
    names = [str(tmp_path / name) for name in ("without", "with")]
    without, found = find_entities(names)
    assert without == {
        "pipeline": names[0],
        "sentences": [{"text": "Go to London", "entities": []}],
    }
    assert found["sentences"][0]["entities"] == [(6, 12, "PLACE")]


def test_a_pipeline_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="nowhere"):
        find_entities(["nowhere"])

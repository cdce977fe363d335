"""The demo's section on entities."""

import re
from pathlib import Path

import pytest
import spacy

from hf_elmo.demo import entities


def test_entities_of_a_pipeline_are_shown_and_text_is_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "PLACE", "pattern": "London"}])
    nlp.to_disk(tmp_path / "pipeline")
    monkeypatch.setattr(entities, "SENTENCES", ("London <script>",))
    section = entities.make_entities([str(tmp_path / "pipeline")])
    assert "PLACE" in section
    assert "<script" not in section


def test_each_pipeline_has_a_column_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nlp = spacy.blank("en")
    nlp.to_disk(tmp_path / "empty")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "PLACE", "pattern": "London"}])
    nlp.to_disk(tmp_path / "<b>full")
    monkeypatch.setattr(entities, "SENTENCES", ("They left London .", "They left ."))
    section = entities.make_entities([str(tmp_path / name) for name in ("empty", "<b>full")])
    assert re.findall(r"<h3>[^<]*/([^<]*)</h3>", section) == ["empty", "&lt;b&gt;full"]
    assert section.count("None.") == 1
    assert section.count("PLACE") == 1


def test_a_pipeline_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="nowhere"):
        entities.make_entities(["nowhere"])

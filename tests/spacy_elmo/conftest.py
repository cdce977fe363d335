"""Fixtures of the component's tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elmo_pipelines import add_tagger, initialize
from spacy.language import Language


@pytest.fixture
def add_elmo(nlp: Language, tiny_folder: Path) -> Callable[..., Any]:
    """Add the tiny biLM to a pipeline, with settings."""

    def add(pipeline: Language = nlp, name: str = "elmo", **settings: Any) -> Any:
        config = {"model": {"name": str(tiny_folder)}, **settings}
        return pipeline.add_pipe("elmo", name, config=config)

    return add


@pytest.fixture
def trained(nlp: Language, add_elmo: Callable[..., Any]) -> Language:
    """A pipeline with two listeners of which the biLM could be read at two places."""
    nlp.add_pipe("sentencizer")
    add_elmo(store_layers=True)
    add_tagger(nlp)
    add_tagger(nlp, "tagger2", layer_norm="sentence")
    examples, optimizer = initialize(nlp)
    for _ in range(3):
        nlp.update(examples, sgd=optimizer)
    return nlp

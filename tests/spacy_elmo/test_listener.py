from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spacy
from elmo_pipelines import add_tagger, get_listener, initialize, make_examples, predict
from numpy.testing import assert_allclose
from spacy.language import Language

from spacy_elmo.learned_mix import get_mix

CLOSE = {"rtol": 0, "atol": 1e-5}  # as in test_component.py

AddElmo = Callable[..., Any]


# Moving house


def test_excluded_elmo_is_an_error_that_names_it(trained: Language, tmp_path: Path) -> None:
    trained.to_disk(tmp_path)
    nlp = spacy.load(tmp_path, exclude=["elmo"])
    with pytest.raises(ValueError, match="none stands before it"):
        nlp("The bank")


def test_listener_before_elmo_is_an_error(nlp: Language, add_elmo: AddElmo) -> None:
    add_tagger(nlp)
    add_elmo()
    with pytest.raises(ValueError, match="none stands before it"):
        initialize(nlp)


def test_listener_of_spacys_own_is_an_error_that_names_ours(
    nlp: Language, add_elmo: AddElmo
) -> None:
    add_elmo()
    tok2vec = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "elmo"}
    with pytest.raises(ValueError, match=r"ElmoListener.v1 with upstream = 'elmo' .* 'tagger'"):
        nlp.add_pipe("tagger", config={"model": {"tok2vec": tok2vec}})


def test_wrong_width_is_an_error_that_tells_the_right_one(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo()
    add_tagger(nlp, width=300)
    with pytest.raises(ValueError, match=r"Expected width 16 .* got 300"):
        initialize(nlp)


def test_listener_finds_the_elmo_that_it_names(nlp: Language, add_elmo: AddElmo) -> None:
    one, two = add_elmo(name="one"), add_elmo(name="two")
    listeners = [
        get_listener(add_tagger(nlp, f"tagger-{name}", upstream=name)) for name in ("one", "two")
    ]
    anyone = get_listener(add_tagger(nlp, "any"))
    assert [listener.attrs["link"].get() for listener in listeners] == [one.source, two.source]
    assert anyone.attrs["link"].get() is two.source
    assert one.listening_components == ["tagger-one"]
    assert two.listening_components == ["tagger-two", "any"]
    nlp.remove_pipe("two")
    assert one.listening_components == ["tagger-one", "any"]
    assert anyone.attrs["link"].get() is one.source


def test_replaced_listeners_predict_the_same_alone(trained: Language, tmp_path: Path) -> None:
    trained.get_pipe("elmo").source.cache = None
    expected = predict(trained)
    trained.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    trained.replace_listeners("elmo", "tagger2", ["model.tok2vec"])
    trained.remove_pipe("elmo")
    trained.to_disk(tmp_path)
    for other in (trained, spacy.load(tmp_path)):
        for one, two in zip(predict(other), expected, strict=True):
            assert_allclose(one, two, **CLOSE)


def test_replaced_listeners_can_be_trained(trained: Language) -> None:
    trained.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    before = get_mix(
        next(n for n in trained.get_pipe("tagger").model.walk() if n.name == "elmo-mix")
    )
    trained.update(make_examples(trained), sgd=trained.resume_training())
    (node,) = [n for n in trained.get_pipe("tagger").model.walk() if n.name == "elmo-mix"]
    assert get_mix(node).gamma != before.gamma


def test_components_can_be_sourced_with_their_elmo(trained: Language) -> None:
    trained.get_pipe("elmo").source.cache = None
    expected = predict(trained)
    other = spacy.blank("xx")
    for name in ("elmo", "tagger", "tagger2"):
        other.add_pipe(name, source=trained)
    for one, two in zip(predict(other), expected, strict=True):
        assert_allclose(one, two, **CLOSE)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_sourced_config_works_alone_only_with_replaced_listeners(
    trained: Language, tmp_path: Path, is_replaced: bool
) -> None:
    trained.get_pipe("elmo").source.cache = None
    expected = predict(trained)
    trained.to_disk(tmp_path)
    section: dict[str, Any] = {"source": str(tmp_path)}
    if is_replaced:
        section["replace_listeners"] = ["model.tok2vec"]
    config = {
        "nlp": {"lang": "xx", "pipeline": ["tagger", "tagger2"]},
        "components": {"tagger": section, "tagger2": section},
    }
    nlp = spacy.util.load_model_from_config(config, auto_fill=True)
    if is_replaced:
        for one, two in zip(predict(nlp), expected, strict=True):
            assert_allclose(one, two, **CLOSE)
    else:
        with pytest.raises(ValueError, match="none stands before it"):
            predict(nlp)

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spacy
from elmo_pipelines import (
    LISTENER,
    add_tagger,
    get_listener,
    initialize,
    make_examples,
    predict,
)
from numpy.testing import assert_allclose
from spacy.kb import InMemoryLookupKB
from spacy.language import Language
from spacy.training import Example
from spacy.vocab import Vocab

from spacy_elmo.learned_mix import get_mix

CLOSE = {"rtol": 0, "atol": 1e-5}  # as in test_component.py

AddElmo = Callable[..., Any]


# Moving house


def test_excluded_elmo_is_an_error_that_names_it(trained: Language, tmp_path: Path) -> None:
    trained.to_disk(tmp_path)
    nlp = spacy.load(tmp_path, exclude=["elmo"])
    with pytest.raises(ValueError, match="no such component is before it"):
        nlp("The bank")


def test_listener_before_elmo_is_an_error(nlp: Language, add_elmo: AddElmo) -> None:
    add_tagger(nlp)
    add_elmo()
    with pytest.raises(ValueError, match="no such component is before it"):
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
    other("The bank")
    for one, two in zip(predict(other), expected, strict=True):
        assert_allclose(one, two, **CLOSE)


def test_a_component_sourced_without_its_elmo_warns(trained: Language) -> None:
    other = spacy.blank("xx")
    other.add_pipe("tagger", source=trained)
    with pytest.warns(UserWarning, match="reads the 'elmo' component of another pipeline"):
        other("The bank")


def test_a_pipeline_that_does_not_read_elmo_warns(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo()
    nlp.add_pipe("tagger").add_label("X")
    with pytest.warns(UserWarning, match="No component reads 'elmo': tagger will be trained with"):
        nlp.initialize()


@pytest.mark.filterwarnings("error:No component reads")
def test_an_elmo_beside_the_one_that_is_read_does_not_warn(
    nlp: Language, add_elmo: AddElmo
) -> None:
    add_elmo(name="vectors")
    elmo = add_elmo()
    add_tagger(nlp)
    initialize(nlp)
    assert elmo.listening_components == ["tagger"]


def test_a_sourced_elmo_is_initialized_without_a_warning(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo()
    other = spacy.blank("xx")
    other.add_pipe("elmo", source=nlp)
    add_tagger(other)
    initialize(other)
    assert other.get_pipe("elmo").source.vocab is other.vocab


def test_a_pipeline_with_replaced_listeners_is_initialized_without_a_warning(
    nlp: Language, add_elmo: AddElmo
) -> None:
    nlp.add_pipe("sentencizer")
    add_elmo(segment="sents")  # the samples of training docs have no sentences
    add_tagger(nlp)
    initialize(nlp)
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    initialize(nlp)
    assert nlp("The bank")[1].tag_


def test_elmo_is_initialized_beside_components_that_are_not(trained: Language) -> None:
    expected = predict(trained)
    with trained.select_pipes(disable=["tagger", "tagger2"]):
        initialize(trained)
    for one, two in zip(predict(trained), expected, strict=True):
        assert_allclose(one, two, **CLOSE)


@pytest.mark.parametrize("path", ["model.tok2vec", "model.tok2vec.elmo"])
def test_a_replaced_listener_inside_a_tok2vec_can_be_loaded(
    nlp: Language, add_elmo: AddElmo, tmp_path: Path, path: str
) -> None:
    add_elmo()
    encoder = {"@architectures": "spacy.MaxoutWindowEncoder.v2", "width": 8, "depth": 1}
    tok2vec = {
        "@architectures": "spacy_elmo.ElmoTok2Vec.v1",
        "elmo": {"@architectures": "spacy_elmo.ElmoListener.v1"},
        "encode": {**encoder, "window_size": 1, "maxout_pieces": 2},
    }
    tagger = nlp.add_pipe("tagger", config={"model": {"tok2vec": tok2vec}})
    tagger.add_label("X")
    initialize(nlp)
    nlp.replace_listeners("elmo", "tagger", [path])
    nlp.remove_pipe("elmo")
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    assert loaded("The bank")[1].tag_ == nlp("The bank")[1].tag_ == "X"


def test_a_replaced_listener_of_any_architecture_can_be_loaded(
    nlp: Language, add_elmo: AddElmo, tmp_path: Path
) -> None:
    add_elmo()
    encoder = {"@architectures": "spacy.MaxoutWindowEncoder.v2", "width": 16, "depth": 1}
    tok2vec = {
        "@architectures": "spacy.Tok2Vec.v2",
        "embed": {"@architectures": "spacy_elmo.ElmoListener.v1", "width": 16},
        "encode": {**encoder, "window_size": 1, "maxout_pieces": 2},
    }
    for name in ("tagger", "other"):
        nlp.add_pipe("tagger", name, config={"model": {"tok2vec": tok2vec}}).add_label("X")
    initialize(nlp)
    path = "model.tok2vec.embed"
    with pytest.raises(ValueError, match="E887"):
        nlp.replace_listeners("elmo", "tagger", [path, path])
    with pytest.raises(ValueError, match="E886"):
        nlp.replace_listeners("elmo", "tagger", ["model.tok2vec.input"])
    for name in ("other", "tagger"):
        nlp.replace_listeners("elmo", name, [path])
    nlp.remove_pipe("elmo")
    nlp.to_disk(tmp_path)
    assert spacy.load(tmp_path)("The bank")[1].tag_ == "X"


CNN = {
    "@architectures": "spacy.MaxoutWindowEncoder.v2",
    "width": 8,
    "depth": 1,
    "window_size": 1,
    "maxout_pieces": 2,
}
BOTH_ENDS = {
    "@architectures": "spacy_elmo.ElmoTok2Vec.v1",
    "elmo": LISTENER,
    "encode": CNN,
    "elmo_output": LISTENER,
}


@pytest.mark.parametrize("tok2vec", [LISTENER, BOTH_ENDS], ids=["listener", "both ends"])
@pytest.mark.parametrize("disabled", [[], ["elmo"]], ids=["all", "only the linker"])
def test_an_entity_linker_learns_the_width(
    nlp: Language, add_elmo: AddElmo, tok2vec: dict[str, Any], disabled: list[str]
) -> None:
    add_elmo()
    example = add_linker(nlp, tok2vec)
    with nlp.select_pipes(disable=disabled):  # as in spacy train, if `elmo` is frozen or sourced
        nlp.initialize(lambda: [example])
    assert nlp.update([example])["entity_linker"] > 0


def test_an_entity_linker_with_a_replaced_listener_is_initialized_again(
    nlp: Language, add_elmo: AddElmo
) -> None:
    add_elmo()
    example = add_linker(nlp, LISTENER)
    nlp.initialize(lambda: [example])
    nlp.replace_listeners("elmo", "entity_linker", ["model.tok2vec"])
    model = nlp.config["components"]["entity_linker"]["model"]
    other = spacy.blank("xx")
    example = add_linker(other, model["tok2vec"])
    other.initialize(lambda: [example])
    assert other.update([example])["entity_linker"] > 0


def add_linker(nlp: Language, tok2vec: dict[str, Any]) -> Example:
    """Add an entity linker; return an example for it."""
    model = {"@architectures": "spacy.EntityLinker.v2", "nO": None, "tok2vec": tok2vec}
    linker = nlp.add_pipe("entity_linker", config={"model": model, "use_gold_ents": True})
    linker.set_kb(make_knowledge)
    entities = {"entities": [(4, 8, "ORG")], "links": {(4, 8): {"Q1": 1.0, "Q2": 0.0}}}
    return Example.from_dict(nlp.make_doc("The bank"), {**entities, "sent_starts": [1, 0]})


def make_knowledge(vocab: Vocab) -> InMemoryLookupKB:
    knowledge = InMemoryLookupKB(vocab, entity_vector_length=4)
    for number, name in enumerate(("Q1", "Q2")):
        knowledge.add_entity(name, 1, [float(number)] * 4)
    knowledge.add_alias("bank", ["Q1", "Q2"], [0.5, 0.5])
    return knowledge


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
        with pytest.raises(ValueError, match="no such component is before it"):
            predict(nlp)

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from numpy.testing import assert_allclose
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.vectors import Vectors

AddElmo = Callable[..., Any]
LISTENER = {"@architectures": "spacy_elmo.ElmoListener.v1"}
EMBED = {
    "@architectures": "spacy.MultiHashEmbed.v2",
    "width": 8,
    "attrs": ["NORM", "PREFIX"],
    "rows": [50, 50],
    "include_static_vectors": False,
}
CNN = {
    "@architectures": "spacy.MaxoutWindowEncoder.v2",
    "width": 8,
    "window_size": 1,
    "maxout_pieces": 2,
    "depth": 1,
}
LSTM = {"@architectures": "spacy.TorchBiLSTMEncoder.v1", "width": 8, "depth": 1, "dropout": 0.0}
BOTH_ENDS = {
    "@architectures": "spacy_elmo.ElmoTok2Vec.v1",
    "elmo": LISTENER,
    "embed": EMBED,
    "encode": CNN,
    "elmo_output": LISTENER,
}
FACTORIES = [
    "tagger",
    "morphologizer",
    "senter",
    "trainable_lemmatizer",
    "parser",
    "beam_parser",
    "ner",
    "beam_ner",
    "textcat",
    "textcat_multilabel",
    "spancat",
    "spancat_singlelabel",
    "span_finder",
]


@pytest.fixture
def pipeline(nlp: Language, tiny_folder: Path) -> Language:
    nlp.add_pipe("elmo", config={"model": {"name": str(tiny_folder)}})
    return nlp


def make_examples(nlp: Language) -> list[Example]:
    """Make gold docs that have what each of the factories learns from."""
    examples = []
    for person, verb in (("Ada", "saw"), ("Bo", "left")) * 3:
        words = [person, verb, "banks", "."]
        reference = Doc(
            nlp.vocab,
            words=words,
            tags=["N", "V", "N", "."],
            pos=["NOUN", "VERB", "NOUN", "PUNCT"],
            morphs=["Number=Sing", "Tense=Past", "Number=Plur", ""],
            lemmas=[person, verb, "bank", "."],
            heads=[1, 1, 1, 1],
            deps=["nsubj", "ROOT", "obj", "punct"],
            ents=["B-PERSON", "O", "O", "O"],
        )
        reference.cats = {"ADA": float(person == "Ada"), "BO": float(person == "Bo")}
        reference.spans["sc"] = [Span(reference, 0, 1, "PERSON")]
        examples.append(Example(Doc(nlp.vocab, words=words), reference))
    return examples


def collect_predictions(nlp: Language) -> list[Any]:
    docs = [Doc(nlp.vocab, words=words) for words in (["Ada", "saw", "Bo", "."], [], ["Bo"])]
    return [
        (
            [(t.tag_, str(t.morph), t.lemma_, t.dep_, t.head.i, t.is_sent_start) for t in doc],
            [(ent.start, ent.end, ent.label_) for ent in doc.ents],
            {label: round(score, 4) for label, score in doc.cats.items()},
            [(s.start, s.end, s.label_) for key in sorted(doc.spans) for s in doc.spans[key]],
        )
        for doc in nlp.pipe(docs)
    ]


@pytest.mark.parametrize("factory", ["tagger", "textcat", "spancat", "ner"])
@pytest.mark.parametrize("ends", ["input", "both"])
def test_elmo_and_static_vectors_are_read_together(
    pipeline: Language, factory: str, ends: str
) -> None:
    pipeline.vocab.vectors = Vectors(data=np.eye(2, 3, dtype="f"), keys=["Ada", "saw"])
    tok2vec: dict[str, Any] = BOTH_ENDS | {"embed": EMBED | {"include_static_vectors": True}}
    if ends == "input":
        tok2vec["elmo_output"] = None
    component = pipeline.add_pipe(factory, config={"model": {"tok2vec": tok2vec}})
    examples = make_examples(pipeline)
    optimizer = pipeline.initialize(lambda: examples)
    (static,) = [x for x in component.model.walk() if x.name == "static_vectors"]
    before = static.get_param("W").copy()
    assert before.shape == (8, 3)
    pipeline.update(examples, sgd=optimizer)
    assert np.abs(static.get_param("W") - before).max() > 0


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize(
    "tok2vec",
    [
        pytest.param(LISTENER, id="listener"),
        pytest.param(BOTH_ENDS, id="both ends", marks=pytest.mark.slow),
    ],
)
def test_component_trains_and_reloads(
    pipeline: Language, factory: str, tok2vec: dict[str, Any], tmp_path: Path
) -> None:
    config: dict[str, Any] = {"model": {"tok2vec": tok2vec}}
    if "parser" in factory:
        config["min_action_freq"] = 1
    component = pipeline.add_pipe(factory, config=config)
    examples = make_examples(pipeline)
    optimizer = pipeline.initialize(lambda: examples)
    mixes = [n for n in component.model.walk() if n.name == "elmo-listener"]
    losses = []
    optimizer.learn_rate = 0.01
    for _ in range(20):
        step: dict[str, float] = {}
        pipeline.update(examples, sgd=optimizer, losses=step)
        losses.append(step[factory])
    assert losses[-1] < losses[0] or factory.startswith("beam_")  # whose losses jump about
    assert all(np.abs(mix.get_param("mix")).max() > 0 for mix in mixes)

    pipeline.get_pipe("elmo").source.cache = None
    pipeline.to_disk(tmp_path)
    reloaded = spacy.load(tmp_path)
    assert collect_predictions(reloaded) == collect_predictions(pipeline)


@pytest.mark.parametrize("embed", [None, EMBED], ids=["elmo alone", "embed"])
@pytest.mark.parametrize("encode", [CNN, LSTM], ids=["cnn", "lstm"])
@pytest.mark.parametrize("elmo_output", [None, LISTENER], ids=["input", "both ends"])
def test_parts_can_be_combined(
    pipeline: Language, embed: Any, encode: dict[str, Any], elmo_output: Any
) -> None:
    tok2vec = {**BOTH_ENDS, "embed": embed, "encode": encode, "elmo_output": elmo_output}
    tagger = pipeline.add_pipe("tagger", config={"model": {"tok2vec": tok2vec}})
    examples = make_examples(pipeline)
    pipeline.initialize(lambda: examples)
    width = 8 if elmo_output is None else 8 + 16
    assert tagger.model.get_ref("tok2vec").get_dim("nO") == width
    (vectors,) = tagger.model.get_ref("tok2vec").predict([examples[0].predicted])
    assert vectors.shape == (4, width)


def test_output_ends_with_a_mix_of_its_own(pipeline: Language) -> None:
    tagger = pipeline.add_pipe("tagger", config={"model": {"tok2vec": BOTH_ENDS}})
    examples = make_examples(pipeline)
    pipeline.initialize(lambda: examples)
    at_output = tagger.model.get_ref("tok2vec").layers[-1]
    at_output.set_param("gamma", np.array([0.1], dtype="f"))
    docs = [examples[0].predicted]
    (vectors,) = tagger.model.get_ref("tok2vec").predict(docs)
    assert_allclose(vectors[:, 8:], at_output.predict(docs)[0], rtol=1e-5)


def test_shared_tok2vec_can_stand_beside_elmo(pipeline: Language, tmp_path: Path) -> None:
    shared = {"@architectures": "spacy.Tok2Vec.v2", "embed": EMBED, "encode": CNN}
    pipeline.add_pipe("tok2vec", config={"model": shared})
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 8}
    tok2vec = {**BOTH_ENDS, "embed": listener}
    pipeline.add_pipe("tagger", config={"model": {"tok2vec": tok2vec}})
    examples = make_examples(pipeline)
    optimizer = pipeline.initialize(lambda: examples)
    for _ in range(3):
        pipeline.update(examples, sgd=optimizer)
    pipeline.get_pipe("elmo").source.cache = None
    pipeline.to_disk(tmp_path)
    assert collect_predictions(spacy.load(tmp_path)) == collect_predictions(pipeline)


@pytest.mark.parametrize(
    "paths",
    [
        ["model.tok2vec.elmo", "model.tok2vec.elmo_output"],
        ["model.tok2vec.elmo_output", "model.tok2vec.elmo"],
        ["model.tok2vec", "model.tok2vec"],
        ["model.tok2vec.elmo", "model.tok2vec"],
        ["model.tok2vec.elmo_output", "model.tok2vec"],
    ],
)
def test_both_listeners_can_be_replaced(
    pipeline: Language, tmp_path: Path, paths: list[str]
) -> None:
    tok2vec = {**BOTH_ENDS, "elmo_output": {**LISTENER, "layer_norm": "sentence"}}
    pipeline.add_pipe("tagger", config={"model": {"tok2vec": tok2vec}})
    examples = make_examples(pipeline)
    optimizer = pipeline.initialize(lambda: examples)
    pipeline.update(examples, sgd=optimizer)
    pipeline.get_pipe("elmo").source.cache = None
    expected = collect_predictions(pipeline)
    with pytest.raises(ValueError, match="E886"):
        pipeline.replace_listeners("elmo", "tagger", ["model.tok2vec.elmo", "model.tok2vec.no"])
    pipeline.replace_listeners("elmo", "tagger", paths)
    pipeline.remove_pipe("elmo")
    pipeline.to_disk(tmp_path)
    section = pipeline.config["components"]["tagger"]["model"]["tok2vec"]
    listeners = [section[key]["listener"] for key in ("elmo", "elmo_output")]
    assert [listener["layer_norm"] for listener in listeners] == ["none", "sentence"]
    assert collect_predictions(pipeline) == expected
    assert collect_predictions(spacy.load(tmp_path)) == expected


@pytest.mark.parametrize("path", ["model.tok2vec.elmo_output", "model.tok2vec.elmo"])
@pytest.mark.parametrize("replaced", ["elmo_output", "embed"])
def test_the_listener_of_the_named_elmo_is_replaced(
    pipeline: Language, add_elmo: AddElmo, tmp_path: Path, path: str, replaced: str
) -> None:
    add_elmo(pipeline, name="other")
    sides = {"elmo": "elmo", "elmo_output": "elmo", replaced: "other"}
    tok2vec = {**BOTH_ENDS, **{key: {**LISTENER, "upstream": x} for key, x in sides.items()}}
    pipeline.add_pipe("tagger", config={"model": {"tok2vec": tok2vec}})
    examples = make_examples(pipeline)
    pipeline.initialize(lambda: examples)
    expected = collect_predictions(pipeline)
    pipeline.replace_listeners("other", "tagger", [path])
    pipeline.remove_pipe("other")
    pipeline.to_disk(tmp_path)
    section = pipeline.config["components"]["tagger"]["model"]["tok2vec"]
    names = {key: section[key]["@architectures"] for key in sides}
    assert [key for key in sides if names[key] == "spacy_elmo.ElmoMix.v1"] == [replaced]
    assert collect_predictions(spacy.load(tmp_path)) == expected

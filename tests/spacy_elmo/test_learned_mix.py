from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from elmo_pipelines import WORDS, add_tagger, get_listener, initialize
from numpy.testing import assert_allclose
from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import SGD, Model

from spacy_elmo.architecture import get_shim
from spacy_elmo.learned_mix import get_mix

CLOSE = {"rtol": 0, "atol": 1e-5}  # as in test_component.py
# Central differences of sums of float32 numbers; a wrong factor or term is off by much more.
GRADIENT = {"rtol": 1e-2, "atol": 1e-2}

AddElmo = Callable[..., Any]


# The mix


def test_listener_begins_with_the_mean_of_the_layers(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo(store_layers=True)
    listener = get_listener(add_tagger(nlp))
    initialize(nlp)
    docs = [nlp.get_pipe("elmo")(Doc(nlp.vocab, words=words)) for words in WORDS]
    for doc, vectors in zip(docs, listener.predict(docs), strict=True):
        assert_allclose(vectors, doc._.elmo_layers.mean(axis=0), **CLOSE)
    assert get_mix(listener).gamma == 1


def test_listener_computes_the_papers_sum(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo(store_layers=True)
    listener = get_listener(add_tagger(nlp, learn_rate_scale=2.0))
    initialize(nlp)
    listener.set_param("mix", np.array([0.0, 0.5, 1.0], dtype="f"))
    listener.set_param("gamma", np.array([0.25], dtype="f"))
    doc = nlp.get_pipe("elmo")(Doc(nlp.vocab, words=["The", "bank"]))
    shares = np.exp([0.0, 1.0, 2.0]) / np.exp([0.0, 1.0, 2.0]).sum()
    assert_allclose(
        listener.predict([doc])[0], 1.5 * np.tensordot(shares, doc._.elmo_layers, 1), **CLOSE
    )
    assert_allclose(get_mix(listener).shares, shares, **CLOSE)
    assert get_mix(listener).gamma == 1.5


def test_no_docs_have_no_vectors(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo()
    listener = get_listener(add_tagger(nlp))
    initialize(nlp)
    vectors, backprop = listener.begin_update([])
    assert (vectors, backprop([])) == ([], [])


def test_layer_norm_is_over_the_words_of_each_sentence(nlp: Language, add_elmo: AddElmo) -> None:
    nlp.add_pipe("sentencizer")
    elmo = add_elmo(store_layers=True)
    listener = get_listener(add_tagger(nlp, layer_norm="sentence"))
    initialize(nlp)
    doc = Doc(nlp.vocab, words=["A", " ", "bank", ".", "Banks"], sent_starts=[1, 0, 0, 0, 1])
    layers = elmo(doc)._.elmo_layers
    expected = np.zeros_like(layers)
    for rows in ([0, 2, 3], [4]):
        part = layers[:, rows]
        centred = part - part.mean(axis=(1, 2), keepdims=True)
        expected[:, rows] = centred / part.std(axis=(1, 2), keepdims=True)
    assert_allclose(listener.predict([doc])[0], expected.mean(axis=0), **CLOSE)


def test_dropout_is_for_training_only(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo()
    listener = get_listener(add_tagger(nlp, dropout=0.5))
    initialize(nlp)
    docs = [Doc(nlp.vocab, words=["bank"] * 100)]
    (dropped,), _ = listener.begin_update(docs)
    (whole,) = listener.predict(docs)
    share = (dropped == 0).mean()
    assert 0.4 < share < 0.6
    assert_allclose(dropped[dropped != 0], 2 * whole[dropped != 0], **CLOSE)


# Gradients


def measure_slope(
    listener: Model[Any, Any],
    docs: list[Doc],
    change: Callable[[float], Any],
    factors: list[Any],
    step: float = 1e-2,
) -> float:
    """Measure the slope of `sum(factors * outputs)` by a central difference."""

    def compute_sum() -> float:
        outputs = listener.begin_update(docs)[0]
        return sum(float(np.vdot(f.astype("d"), y)) for f, y in zip(factors, outputs, strict=True))

    change(step)
    above = compute_sum()
    change(-2 * step)
    below = compute_sum()
    change(step)
    return (above - below) / (2 * step)


def make_factors(docs: Sequence[Doc]) -> list[Any]:
    generator = np.random.default_rng(0)
    return [generator.normal(size=(len(doc), 16)).astype("f") for doc in docs]


@pytest.mark.parametrize("layer_norm", ["none", "sentence"])
@pytest.mark.parametrize("l2", [0.0, 0.5])
@pytest.mark.parametrize("name", ["mix", "gamma"])
def test_gradients_of_the_mix_match_finite_differences(
    nlp: Language, add_elmo: AddElmo, layer_norm: str, l2: float, name: str
) -> None:
    add_elmo()
    scale = 2.0
    tagger = add_tagger(nlp, layer_norm=layer_norm, l2=l2, learn_rate_scale=scale)
    listener = get_listener(tagger)
    initialize(nlp)
    listener.set_param("mix", np.array([0.1, -0.2, 0.3], dtype="f"))
    listener.set_param("gamma", np.array([0.5], dtype="f"))
    docs = [Doc(nlp.vocab, words=words) for words in WORDS]
    factors = make_factors(docs)
    listener.begin_update(docs)[1](factors)
    parameter, gradient = listener.get_param(name), listener.get_grad(name)
    for i in range(len(parameter)):

        def change(amount: float, i: int = i) -> None:
            parameter[i] += amount

        slope = measure_slope(listener, docs, change, factors)
        if name == "mix":  # d/dv of l2 * ||scale * v||^2
            slope += 2 * l2 * scale**2 * float(parameter[i])
        assert_allclose(gradient[i], slope, **GRADIENT)


def test_the_penalty_on_the_mix_counts_once_in_each_step(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo()
    listener = get_listener(add_tagger(nlp, l2=0.5))
    examples, _ = initialize(nlp)
    scale = listener.attrs["learn_rate_scale"]
    for _ in range(2):
        mix = np.array([0.1, -0.2, 0.3], dtype="f")
        listener.set_param("mix", mix.copy())
        for example in examples:  # the tagger's output begins with zeros, which pass no gradient on
            nlp.update([example], sgd=False)
        assert_allclose(listener.get_grad("mix"), 2 * 0.5 * scale**2 * mix, rtol=1e-6)
        listener.finish_update(SGD(0.1))


def test_gradients_pass_only_where_dropout_keeps_the_output(
    nlp: Language, add_elmo: AddElmo
) -> None:
    add_elmo()
    listener = get_listener(add_tagger(nlp, dropout=0.5, learn_rate_scale=2.0))
    initialize(nlp)
    (output,), backprop = listener.begin_update([Doc(nlp.vocab, words=["A", "river", "bank"])])
    backprop([np.ones_like(output)])
    assert_allclose(listener.get_grad("gamma")[0], 2.0 * output.sum(), rtol=1e-4)


def keep_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let layers keep float64, for steps so small that they cross no edge of a clip or maximum."""
    monkeypatch.setattr(
        "spacy_elmo.architecture.alloc_layers", lambda model, doc: np.zeros((3, len(doc), 16))
    )
    monkeypatch.setattr("spacy_elmo.architecture.to_ops", lambda ops, values: values.numpy())


@pytest.fixture
def keep_gradients() -> Callable[[Any], dict[str, Any]]:
    """Let a component take a step that changes nothing, and give the gradients it had."""

    def keep(elmo: Any) -> dict[str, Any]:
        kept: dict[str, Any] = {}

        def take_no_step(key: tuple[int, str], weights: Any, gradient: Any) -> tuple[Any, Any]:
            kept[key[1]] = gradient.copy()
            return weights, gradient

        elmo.finish_update(take_no_step)
        return kept

    return keep


@pytest.mark.parametrize("layer_norm", ["none", "sentence"])
def test_gradients_of_the_bilm_match_finite_differences(
    nlp: Language,
    add_elmo: AddElmo,
    monkeypatch: pytest.MonkeyPatch,
    keep_gradients: Callable[[Any], dict[str, Any]],
    layer_norm: str,
) -> None:
    elmo = add_elmo(frozen=False)
    listeners = [get_listener(add_tagger(nlp, name, layer_norm=layer_norm)) for name in "ab"]
    examples, _ = initialize(nlp)
    bilm = get_shim(elmo.model).load().model
    bilm.double()
    keep_float64(monkeypatch)
    bilm.config.dropout = 0.0
    docs = [example.predicted for example in examples]
    factors = make_factors(docs)

    elmo.update(examples, sgd=False)
    for listener in listeners:
        listener.begin_update(docs)[1](factors)
    gradients = keep_gradients(elmo)

    parameters = dict(bilm.named_parameters())
    assert gradients.keys() == parameters.keys()
    generator = np.random.default_rng(0)
    for name, gradient in gradients.items():  # along a random direction in each tensor
        direction = generator.normal(size=gradient.shape).astype("f")
        direction /= np.linalg.norm(direction)

        def change(amount: float, name: str = name, direction: Any = direction) -> None:
            with torch.no_grad():
                parameters[name].add_(amount * torch.from_numpy(direction).double())
            elmo.source.held.clear()

        slope = sum(measure_slope(each, docs, change, factors, step=1e-6) for each in listeners)
        assert_allclose((gradient * direction).sum(), slope, rtol=1e-3, atol=1e-5, err_msg=name)


def test_docs_outside_the_batch_teach_the_bilm_nothing(
    nlp: Language, add_elmo: AddElmo, keep_gradients: Callable[[Any], dict[str, Any]]
) -> None:
    elmo = add_elmo(frozen=False)
    listener = get_listener(add_tagger(nlp))
    examples, _ = initialize(nlp)
    elmo.update(examples, sgd=False)
    others = [example.predicted.copy() for example in examples]
    backprop = listener.begin_update(others)[1]
    with pytest.warns(UserWarning, match="The biLM does not learn from a component that reads"):
        backprop(make_factors(others))
    assert not any(gradient.any() for gradient in keep_gradients(elmo).values())

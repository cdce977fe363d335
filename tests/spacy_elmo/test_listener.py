import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from numpy.testing import assert_allclose, assert_array_equal
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import SGD, Model

from spacy_elmo.architecture import get_shim
from spacy_elmo.listener import get_mix, normalize_layers

CLOSE = {"rtol": 0, "atol": 1e-5}  # as in test_spacy_component.py
# Central differences of sums of float32 numbers; a wrong factor or term is off by much more.
GRADIENT = {"rtol": 1e-2, "atol": 1e-2}

LISTENER = {"@architectures": "spacy_elmo.ElmoListener.v1"}
WORDS = [["The", "bank", " ", "raised", "rates"], [], ["bank"], [" "], ["A", "river", "bank"]]
TAGS = {"The": "D", "A": "D", "raised": "V", " ": "_"}

AddElmo = Callable[..., Any]


@pytest.fixture
def add_elmo(nlp: Language, tiny_folder: Path) -> AddElmo:
    def add(pipeline: Language = nlp, name: str = "elmo", **settings: Any) -> Any:
        config = {"model": {"name": str(tiny_folder)}, **settings}
        return pipeline.add_pipe("elmo", name, config=config)

    return add


def add_tagger(nlp: Language, name: str = "tagger", **settings: Any) -> Any:
    return nlp.add_pipe("tagger", name, config={"model": {"tok2vec": {**LISTENER, **settings}}})


def get_listener(component: Any) -> Model[Any, Any]:
    (listener,) = [node for node in component.model.walk() if node.name == "elmo-listener"]
    return listener


def make_examples(nlp: Language) -> list[Example]:
    return [
        Example.from_dict(Doc(nlp.vocab, words=words), {"tags": [TAGS.get(w, "N") for w in words]})
        for words in WORDS
    ]


def initialize(nlp: Language) -> tuple[list[Example], Any]:
    examples = make_examples(nlp)
    return examples, nlp.initialize(lambda: examples)


def count_sentences(nlp: Language, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Note each sentence that the biLM reads."""
    from hf_elmo.corpus import embedding

    seen: list[list[str]] = []
    original = embedding.embed_pieces

    def embed_pieces(sentences: Any, *arguments: Any, **settings: Any) -> Any:
        noted = (seen.append(list(words)) or words for words in sentences)
        return original(noted, *arguments, **settings)

    monkeypatch.setattr(embedding, "embed_pieces", embed_pieces)
    return seen


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


def test_gradient_of_layer_norm_matches_finite_differences() -> None:
    generator = np.random.default_rng(0)
    layers, factors = generator.normal(size=(2, 3, 5, 4))
    sentences = [[0, 2], [3, 4]]
    gradient = normalize_layers(np, layers, sentences)[1](factors)
    for place in np.ndindex(layers.shape):
        steps = []
        for step in (1e-6, -1e-6):
            moved = layers.copy()
            moved[place] += step
            steps.append((normalize_layers(np, moved, sentences)[0] * factors).sum())
        assert_allclose(gradient[place], (steps[0] - steps[1]) / 2e-6, rtol=1e-4, atol=1e-6)


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
            elmo.desk.clear()

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
    listener.begin_update(others)[1](make_factors(others))
    assert not any(gradient.any() for gradient in keep_gradients(elmo).values())


# Training


def test_mix_moves_and_predictions_fit(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo(mix={"layers": [0]})
    listener = get_listener(add_tagger(nlp))
    examples, optimizer = initialize(nlp)
    optimizer.learn_rate = 0.01
    for _ in range(100):
        nlp.update(examples, sgd=optimizer)
    mix = get_mix(listener)
    assert np.abs(mix.shares - 1 / 3).max() > 0.01
    assert abs(mix.gamma - 1) > 0.01
    assert nlp.evaluate(examples)["tag_acc"] > 0.8


def test_gamma_can_be_left_alone(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo()
    listener = get_listener(add_tagger(nlp, train_gamma=False))
    examples, optimizer = initialize(nlp)
    for _ in range(2):  # the tagger's output begins with zeros, which pass no gradient on
        nlp.update(examples, sgd=optimizer)
    assert get_mix(listener).gamma == 1.0
    assert get_mix(listener).shares[0] != pytest.approx(1 / 3, abs=1e-6)


def train(nlp: Language, **settings: Any) -> list[float]:
    spacy.util.fix_random_seed(0)
    examples, optimizer = initialize(nlp)
    losses = []
    for _ in range(4):
        step: dict[str, float] = {}
        nlp.update(examples, sgd=optimizer, losses=step, **settings)
        losses.append(step["tagger"])
    return losses


@pytest.mark.parametrize(
    ("settings", "training"),
    [
        ({"frozen": False}, {"exclude": ["elmo"]}),
        ({}, {"exclude": ["elmo"]}),
        ({}, {"annotates": ["elmo"]}),
        ({}, {"exclude": ["elmo"], "annotates": ["elmo"]}),
        ({"set_tensor": False}, {}),
        ({"max_batch_tokens": 1}, {}),
    ],
)
def test_losses_do_not_depend_on_how_elmo_takes_part(
    nlp: Language, add_elmo: AddElmo, settings: dict[str, Any], training: dict[str, Any]
) -> None:
    other = spacy.blank("en")
    for pipeline, values in ((nlp, {}), (other, settings)):
        add_elmo(pipeline, **values)
        add_tagger(pipeline)
    assert train(nlp) == pytest.approx(train(other, **training), rel=1e-4)


def test_frozen_bilm_reads_each_sentence_once_in_training(
    nlp: Language, add_elmo: AddElmo, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_elmo()
    add_tagger(nlp, "tagger")
    add_tagger(nlp, "tagger2")
    examples, optimizer = initialize(nlp)
    seen = count_sentences(nlp, monkeypatch)
    for _ in range(3):
        nlp.update(examples, sgd=optimizer)
        nlp.evaluate(examples)
    assert sorted(seen) == [["A", "river", "bank"], ["The", "bank", "raised", "rates"], ["bank"]]


def test_cache_can_be_sized_and_put_on_disk(
    nlp: Language, add_elmo: AddElmo, tmp_path: Path
) -> None:
    add_elmo()
    add_tagger(nlp)
    nlp.config["initialize"]["components"]["elmo"] = {
        "cache": {"@misc": "spacy_elmo.LayerCache.v1", "max_bytes": 1000, "folder": str(tmp_path)}
    }
    initialize(nlp)
    cache = nlp.get_pipe("elmo").cache
    assert (cache.max_bytes, cache.folder) == (1000, tmp_path)


def test_cache_of_layers_that_change_is_an_error(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo(frozen=False)
    nlp.config["initialize"]["components"]["elmo"] = {
        "cache": {"@misc": "spacy_elmo.LayerCache.v1"}
    }
    with pytest.raises(ValueError, match="Expected no cache where frozen = false"):
        initialize(nlp)


def test_frozen_bilm_stays_as_it_is(nlp: Language, add_elmo: AddElmo) -> None:
    elmo = add_elmo()
    add_tagger(nlp)
    examples, optimizer = initialize(nlp)
    parameters = dict(get_shim(elmo.model).load().model.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    nlp.update(examples, sgd=optimizer)
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)
    assert not elmo.is_trainable


def copy_weights(elmo: Any) -> Any:
    return get_shim(elmo.model).load().model.token_encoder.projection.weight.detach().clone()


def test_bilm_learns_at_the_end_of_a_step_of_spacy_train(nlp: Language, add_elmo: AddElmo) -> None:
    elmo = add_elmo(frozen=False)
    add_tagger(nlp)
    examples, optimizer = initialize(nlp)
    nlp.update(examples, sgd=False)  # as train_while_improving does, for each part of a batch
    nlp.update(examples, sgd=False)
    before = copy_weights(elmo)
    for _, component in nlp.pipeline:
        component.finish_update(optimizer)
    assert not torch.equal(copy_weights(elmo), before)


def test_step_waits_for_gradients_where_update_takes_it_too_early(
    nlp: Language, add_elmo: AddElmo
) -> None:
    elmo = add_elmo(frozen=False)
    tagger = add_tagger(nlp)
    examples, _ = initialize(nlp)
    tagger.model.get_ref("softmax").set_param("W", np.eye(4, 16, dtype="f"))
    before = copy_weights(elmo)
    nlp.update(examples, sgd=SGD(0.1))
    assert torch.equal(copy_weights(elmo), before)
    nlp.to_bytes()
    assert not torch.equal(copy_weights(elmo), before)


def test_parts_of_a_batch_add_up(nlp: Language, add_elmo: AddElmo) -> None:
    results = []
    for parts in (1, 2):
        pipeline = spacy.blank("en")
        elmo = add_elmo(pipeline, frozen=False)
        tagger = add_tagger(pipeline)
        examples, _ = initialize(pipeline)
        get_shim(elmo.model).load().model.config.dropout = 0.0
        tagger.model.get_ref("softmax").set_param("W", np.eye(4, 16, dtype="f"))
        size = len(examples) // parts + 1
        for start in range(0, len(examples), size):
            pipeline.update(examples[start : start + size], sgd=False)
        for _, component in pipeline.pipeline:
            component.finish_update(SGD(0.1))
        results.append(copy_weights(elmo))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_rehearsal_teaches_the_old_predictions(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo()
    add_tagger(nlp)
    examples, _ = initialize(nlp)
    optimizer = nlp.resume_training()
    nlp.update(examples, sgd=optimizer)
    losses: dict[str, float] = {}
    nlp.rehearse(examples, sgd=optimizer, losses=losses)
    assert losses["tagger"] > 0


@pytest.mark.parametrize("interrupted", [False, True])
def test_learned_averages_can_be_put_in(
    nlp: Language, add_elmo: AddElmo, interrupted: bool
) -> None:
    elmo = add_elmo(frozen=False)
    add_tagger(nlp)
    initialize(nlp)
    shim = get_shim(elmo.model)
    before = copy_weights(elmo)
    averages = {(shim.id, "token_encoder.projection.weight"): np.zeros_like(before.numpy())}
    with contextlib.suppress(KeyboardInterrupt), nlp.use_params(averages):
        assert not copy_weights(elmo).any()
        if interrupted:
            raise KeyboardInterrupt
    torch.testing.assert_close(copy_weights(elmo), before, rtol=0, atol=0)


# Predictions


@pytest.fixture
def trained(nlp: Language, add_elmo: AddElmo) -> Language:
    """A pipeline with two listeners of which the biLM could be read at two places."""
    nlp.add_pipe("sentencizer")
    add_elmo(store_layers=True)
    add_tagger(nlp)
    add_tagger(nlp, "tagger2", layer_norm="sentence")
    examples, optimizer = initialize(nlp)
    for _ in range(3):
        nlp.update(examples, sgd=optimizer)
    return nlp


def predict(nlp: Language, docs: Sequence[Doc] | None = None) -> list[Any]:
    """Give the scores of both taggers for fresh docs."""
    results = []
    for name in ("tagger", "tagger2"):
        docs = [Doc(nlp.vocab, words=words) for words in WORDS]
        results += nlp.get_pipe(name).model.predict(docs)
    return results


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_predictions_do_not_depend_on_the_batch(trained: Language, batch_size: int) -> None:
    docs = [Doc(trained.vocab, words=words) for words in WORDS]
    alone = [[t.tag_ for t in trained(doc.copy())] for doc in docs]
    piped = trained.pipe(docs, batch_size=batch_size)
    assert [[token.tag_ for token in doc] for doc in piped] == alone


def test_bilm_reads_a_doc_once_for_all_listeners(
    trained: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained.get_pipe("elmo").cache = None
    seen = count_sentences(trained, monkeypatch)
    list(trained.pipe([Doc(trained.vocab, words=["a", "bank"]) for _ in range(3)]))
    assert len(seen) == 3


def test_listeners_need_not_come_after_elmo_has_run(
    trained: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = predict(trained)
    with trained.select_pipes(disable=["elmo"]):
        for one, other in zip(predict(trained), expected, strict=True):
            assert_array_equal(one, other)
        assert trained("The bank")[1].tag_


def test_all_listeners_read_the_same_sentences(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo()
    first, second = (get_listener(add_tagger(nlp, name)) for name in "ab")
    initialize(nlp)
    doc = Doc(nlp.vocab, words=["A", "bank", ".", "A", "river"])
    (before,) = first.predict([doc])
    doc[3].is_sent_start = True
    nlp.get_pipe("elmo").desk.tidy()
    (after,) = second.predict([doc])
    assert_array_equal(before, after)


@pytest.mark.parametrize("is_cached", [True, False])
def test_reloaded_pipeline_predicts_the_same(
    trained: Language, tmp_path: Path, is_cached: bool
) -> None:
    if not is_cached:
        trained.get_pipe("elmo").cache = None
    expected = predict(trained)
    trained.to_disk(tmp_path)
    reloaded = [
        spacy.load(tmp_path),
        spacy.blank("en", config=trained.config).from_bytes(trained.to_bytes()),
    ]
    for other in reloaded:
        for one, two in zip(predict(other), expected, strict=True):
            assert_allclose(one, two, rtol=0, atol=1e-4 if is_cached else 1e-6)


def test_pickled_pipeline_predicts_the_same(trained: Language) -> None:
    import pickle

    trained.get_pipe("elmo").cache = None
    for one, two in zip(
        predict(pickle.loads(pickle.dumps(trained))), predict(trained), strict=True
    ):
        assert_array_equal(one, two)


def test_two_processes_predict_the_same(trained: Language) -> None:
    docs = [Doc(trained.vocab, words=words) for words in WORDS]
    alone = [[t.tag_ for t in doc] for doc in trained.pipe([doc.copy() for doc in docs])]
    piped = trained.pipe(docs, n_process=2, batch_size=2)
    assert [[token.tag_ for token in doc] for doc in piped] == alone


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
    assert [listener.attrs["link"].get() for listener in listeners] == [one, two]
    assert anyone.attrs["link"].get() is two


def test_replaced_listeners_predict_the_same_alone(trained: Language, tmp_path: Path) -> None:
    trained.get_pipe("elmo").cache = None
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
    trained.get_pipe("elmo").cache = None
    expected = predict(trained)
    other = spacy.blank("en")
    for name in ("elmo", "tagger", "tagger2"):
        other.add_pipe(name, source=trained)
    for one, two in zip(predict(other), expected, strict=True):
        assert_allclose(one, two, **CLOSE)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_sourced_config_works_alone_only_with_replaced_listeners(
    trained: Language, tmp_path: Path, is_replaced: bool
) -> None:
    trained.get_pipe("elmo").cache = None
    expected = predict(trained)
    trained.to_disk(tmp_path)
    section: dict[str, Any] = {"source": str(tmp_path)}
    if is_replaced:
        section["replace_listeners"] = ["model.tok2vec"]
    config = {
        "nlp": {"lang": "en", "pipeline": ["tagger", "tagger2"]},
        "components": {"tagger": section, "tagger2": section},
    }
    nlp = spacy.util.load_model_from_config(config, auto_fill=True)
    if is_replaced:
        for one, two in zip(predict(nlp), expected, strict=True):
            assert_allclose(one, two, **CLOSE)
    else:
        with pytest.raises(ValueError, match="none stands before it"):
            predict(nlp)

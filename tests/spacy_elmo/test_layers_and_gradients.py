import contextlib
import copy
import gc
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from elmo_pipelines import (
    LISTENER,
    WORDS,
    add_tagger,
    get_listener,
    initialize,
    predict,
)
from numpy.testing import assert_allclose, assert_array_equal
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import SGD

from hf_elmo.inference.layer_cache import LayerCache
from spacy_elmo.architecture import DocLayers, get_shim
from spacy_elmo.layers_and_gradients import TrainingBatch
from spacy_elmo.learned_mix import get_mix

CLOSE = {"rtol": 0, "atol": 1e-5}  # as in test_component.py

AddElmo = Callable[..., Any]


def count_sentences(nlp: Language, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Note each sentence that the biLM reads."""
    from hf_elmo.inference import embedding

    seen: list[list[str]] = []
    original = embedding.embed_pieces

    def embed_pieces(sentences: Any, *arguments: Any, **settings: Any) -> Any:
        noted = (seen.append(list(words)) or words for words in sentences)
        return original(noted, *arguments, **settings)

    monkeypatch.setattr(embedding, "embed_pieces", embed_pieces)
    return seen


# Training


@pytest.mark.parametrize("is_sourced", [True, False])
def test_training_needs_no_sentences_before_its_first_batch(
    nlp: Language, add_elmo: AddElmo, is_sourced: bool
) -> None:
    nlp.add_pipe("sentencizer")
    elmo = add_elmo(segment="sents")
    if is_sourced:  # as in spacy train: sourced components are not initialized
        elmo.initialize(lambda: [])
    add_tagger(nlp)
    with nlp.select_pipes(disable=["elmo"] if is_sourced else []):
        examples, optimizer = initialize(nlp)
    with pytest.raises(ValueError, match="Expected a doc with sentence boundaries"):
        nlp.update(examples, sgd=optimizer, exclude=["elmo", "sentencizer"])
    nlp.update(examples, sgd=optimizer, annotates=["sentencizer"])
    with pytest.raises(ValueError, match="Expected a doc with sentence boundaries"):
        nlp.get_pipe("tagger").predict([Doc(nlp.vocab, words=["A", "bank"])])


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


def test_the_listeners_of_a_copied_pipeline_read_its_own_bilm(add_elmo: AddElmo) -> None:
    original = spacy.blank("xx")
    add_elmo(original)
    for name in ("tagger", "tagger2"):
        add_tagger(original, name)
    initialize(original)
    expected = predict(original)
    nlp = copy.deepcopy(original)
    link = get_listener(nlp.get_pipe("tagger")).attrs["link"]
    assert link.find() is nlp.get_pipe("elmo").source
    del original, link
    gc.collect()
    for got, tensor in zip(predict(nlp), expected, strict=True):
        assert_array_equal(got, tensor)


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
    other = spacy.blank("xx")
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
    cache = nlp.get_pipe("elmo").source.cache
    assert (cache.max_bytes, cache.folder) == (1000, tmp_path)


def test_cache_of_layers_that_change_is_an_error(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo(frozen=False)
    nlp.config["initialize"]["components"]["elmo"] = {
        "cache": {"@misc": "spacy_elmo.LayerCache.v1"}
    }
    with pytest.raises(ValueError, match="Expected an empty cache, or none if frozen = false"):
        initialize(nlp)


def test_cache_with_layers_of_another_bilm_is_an_error(nlp: Language, add_elmo: AddElmo) -> None:
    elmo = add_elmo()
    cache = LayerCache(2**20)
    elmo.initialize(lambda: [], cache=cache)
    with pytest.raises(ValueError, match="Expected an empty cache"):
        elmo.initialize(lambda: [], cache=cache)


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


@pytest.mark.parametrize("is_early", [True, False])
def test_parts_of_a_batch_add_up(is_early: bool, add_elmo: AddElmo) -> None:
    """Early: `nlp.update` takes the step, before the listeners of the last part have run."""
    results = []
    for parts in (1, 2):
        pipeline = spacy.blank("xx")
        elmo = add_elmo(pipeline, frozen=False)
        tagger = add_tagger(pipeline)
        examples, _ = initialize(pipeline)
        get_shim(elmo.model).load().model.config.dropout = 0.0
        tagger.model.get_ref("softmax").set_param("W", np.eye(4, 16, dtype="f"))
        size = len(examples) // parts + 1
        for start in range(0, len(examples), size):
            is_last = start + size >= len(examples)
            sgd = SGD(0.1) if is_early and is_last else False
            pipeline.update(examples[start : start + size], sgd=sgd)
        for _, component in pipeline.pipeline if not is_early else ():
            component.finish_update(SGD(0.1))
        pipeline.to_bytes()
        results.append(copy_weights(elmo))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_a_step_that_waits_in_vain_is_taken_in_the_next_batch(
    nlp: Language, add_elmo: AddElmo
) -> None:
    elmo = add_elmo(frozen=False)
    tagger = add_tagger(nlp)
    examples, optimizer = initialize(nlp)
    tagger.model.get_ref("softmax").set_param("W", np.eye(4, 16, dtype="f"))
    before = copy_weights(elmo)
    nlp.update(examples, sgd=False)
    nlp.update(examples, sgd=optimizer, exclude=["tagger"])
    assert torch.equal(copy_weights(elmo), before)
    nlp.update(examples, sgd=False)
    assert not torch.equal(copy_weights(elmo), before)


def test_a_last_part_without_words_does_not_keep_the_step(nlp: Language, add_elmo: AddElmo) -> None:
    elmo = add_elmo(frozen=False)
    tagger = add_tagger(nlp)
    examples, optimizer = initialize(nlp)
    tagger.model.get_ref("softmax").set_param("W", np.eye(4, 16, dtype="f"))
    before = copy_weights(elmo)
    nlp.update(examples, sgd=False)
    nlp.update([Example(nlp.make_doc(""), nlp.make_doc(""))], sgd=False)
    for _, component in nlp.pipeline:
        component.finish_update(optimizer)
    assert not torch.equal(copy_weights(elmo), before)


def test_training_on_a_gpu_without_cupy_is_refused(
    nlp: Language, add_elmo: AddElmo, monkeypatch: pytest.MonkeyPatch
) -> None:
    elmo = add_elmo(frozen=False)
    tagger = add_tagger(nlp)
    examples, optimizer = initialize(nlp)
    tagger.model.get_ref("softmax").set_param("W", np.eye(4, 16, dtype="f"))
    nlp.update(examples, sgd=False)
    monkeypatch.setattr("spacy_elmo.stored_bilm.has_cupy", False)
    get_shim(elmo.model).device = torch.device("cuda:0")  # the biLM itself stays here
    with pytest.raises(ValueError, match="Expected cupy to train the biLM on cuda:0"):
        elmo.finish_update(optimizer)


def test_losses_go_by_the_components_name_of_now(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo(frozen=False)
    add_tagger(nlp)
    examples, optimizer = initialize(nlp)
    nlp.rename_pipe("elmo", "bilm")
    losses = nlp.update(examples, sgd=optimizer)
    assert "bilm" in losses
    assert "elmo" not in losses


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


def test_vectors_are_those_of_the_weights_after_each_step(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo(frozen=False)
    tagger = add_tagger(nlp)
    examples, _ = initialize(nlp)
    tagger.model.get_ref("softmax").set_param("W", np.eye(4, 16, dtype="f"))
    for _ in range(5):
        nlp.update(examples, sgd=SGD(0.1), annotates=["elmo"])
        live = nlp("The bank").tensor
        reloaded = spacy.blank("xx", config=nlp.config).from_bytes(nlp.to_bytes())
        assert_allclose(live, reloaded("The bank").tensor, **CLOSE)


def test_layers_that_wait_for_a_listener_are_computed_again_after_a_step(
    nlp: Language, add_elmo: AddElmo
) -> None:
    elmo = add_elmo(frozen=False)
    tagger = add_tagger(nlp)
    examples, _ = initialize(nlp)
    tagger.model.get_ref("softmax").set_param("W", np.eye(4, 16, dtype="f"))
    doc = elmo(Doc(nlp.vocab, words=["The", "bank"]))
    nlp.update(examples, sgd=SGD(10.0))
    elmo.source.finish_batch()
    listener = get_listener(tagger)
    (got,), (expected,) = (
        listener.predict([x]) for x in (doc, Doc(nlp.vocab, words=["The", "bank"]))
    )
    assert_allclose(got, expected, **CLOSE)


def test_a_listener_that_predicts_in_a_training_batch_reads_no_layers_of_training(
    nlp: Language, add_elmo: AddElmo
) -> None:
    elmo = add_elmo(frozen=False)
    add_tagger(nlp)
    examples, _ = initialize(nlp)
    docs = [example.predicted for example in examples]
    elmo.update(examples)
    (training, *_), send = elmo.source.read(docs, is_train=True)
    (layers, *_), nothing = elmo.source.read(docs, is_train=False)
    assert (send is None, nothing is None) == (False, True)
    assert_allclose(layers.layers, elmo.model.predict(docs[:1])[0].layers, **CLOSE)
    assert np.abs(layers.layers - training.layers).max() > 0.01  # by dropout


def test_vectors_are_those_of_averages_that_change_where_they_are(
    nlp: Language, add_elmo: AddElmo
) -> None:
    elmo = add_elmo(frozen=False)
    shim = get_shim(elmo.model)
    shim.load()
    average = np.zeros_like(copy_weights(elmo).numpy())
    tensors = []
    for value in (0.0, 0.5):
        average[:] = value
        with nlp.use_params({(shim.id, "token_encoder.projection.weight"): average}):
            tensors.append(nlp("The bank").tensor)
    assert np.abs(tensors[0] - tensors[1]).max() > 0.01


def test_waiting_step_is_taken_before_averages_are_put_in(nlp: Language, add_elmo: AddElmo) -> None:
    elmo = add_elmo(frozen=False)
    tagger = add_tagger(nlp)
    examples, _ = initialize(nlp)
    tagger.model.get_ref("softmax").set_param("W", np.eye(4, 16, dtype="f"))
    before = copy_weights(elmo)
    nlp.update(examples, sgd=SGD(0.1))
    with nlp.use_params({(0, "of another model"): np.zeros(1)}):
        assert not torch.equal(copy_weights(elmo), before)


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "replace"])
def test_a_copy_has_taken_the_waiting_step(nlp: Language, add_elmo: AddElmo, way: str) -> None:
    elmo: Any = add_elmo(frozen=False)
    tagger = add_tagger(nlp)
    examples, _ = initialize(nlp)
    tagger.model.get_ref("softmax").set_param("W", np.eye(4, 16, dtype="f"))
    before = copy_weights(elmo)
    nlp.update(examples, sgd=SGD(0.1))
    if way == "replace":
        nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
        bilm = tagger.model.get_ref("tok2vec").layers[0]
    elif way == "deepcopy":
        bilm = copy.deepcopy(nlp).get_pipe("elmo").model
    else:
        bilm = pickle.loads(pickle.dumps(nlp)).get_pipe("elmo").model
    elmo.source.finish_batch()
    assert not torch.equal(copy_weights(elmo), before)
    weights = get_shim(bilm).load().model.token_encoder.projection.weight
    assert torch.equal(weights, copy_weights(elmo))


# Predictions


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_predictions_do_not_depend_on_the_batch(trained: Language, batch_size: int) -> None:
    docs = [Doc(trained.vocab, words=words) for words in WORDS]
    alone = [[t.tag_ for t in trained(doc.copy())] for doc in docs]
    piped = trained.pipe(docs, batch_size=batch_size)
    assert [[token.tag_ for token in doc] for doc in piped] == alone


def test_bilm_reads_a_doc_once_for_all_listeners(
    trained: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained.get_pipe("elmo").source.cache = None
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
    nlp.get_pipe("elmo").source.held.trim()
    (after,) = second.predict([doc])
    assert_array_equal(before, after)


def test_listeners_learn_from_the_same_sentences_if_elmo_is_excluded(
    nlp: Language, add_elmo: AddElmo, monkeypatch: pytest.MonkeyPatch
) -> None:
    elmo = add_elmo()
    nlp.add_pipe("senter", config={"model": {"tok2vec": LISTENER}})
    add_tagger(nlp)
    words = ["A", "bank", "A", "river"]
    given = {"tags": ["D", "N"] * 2, "sent_starts": [True, False] * 2}
    examples = [Example.from_dict(Doc(nlp.vocab, words=words), given)]
    optimizer = nlp.initialize(lambda: examples)
    segments: list[Any] = []
    read = elmo.source.read

    def note(docs: Any, **options: Any) -> Any:
        layers, send = read(docs, **options)
        segments.extend(layer.segments for layer in layers)
        return layers, send

    monkeypatch.setattr(elmo.source, "read", note)
    for _ in range(40):  # until the senter has learned to split the doc
        options = {"exclude": ["elmo"], "annotates": ["senter"]}
        nlp.update(examples, sgd=optimizer, **options)
    assert len(list(nlp("A bank A river").sents)) == 2
    assert segments == [[[0, 1, 2, 3]]] * len(segments)


def test_listeners_read_the_sentences_that_elmo_has_read_even_if_its_layers_were_dropped(
    nlp: Language, add_elmo: AddElmo
) -> None:
    elmo = add_elmo()
    listener = get_listener(add_tagger(nlp))
    initialize(nlp)
    doc, other = (elmo(Doc(nlp.vocab, words=["A", "bank", ".", "A", "river"])) for _ in range(2))
    (expected,) = listener.predict([other])
    elmo.source.held.max_bytes = 0
    elmo.source.held.trim()
    doc[3].is_sent_start = True
    with pytest.warns(UserWarning, match="Layers of docs were dropped"):
        (got,) = listener.predict([doc])
    assert_allclose(got, expected, **CLOSE)


def test_predictions_fill_no_cache(nlp: Language, add_elmo: AddElmo) -> None:
    elmo = add_elmo()
    listener = get_listener(add_tagger(nlp))
    initialize(nlp)
    listener.predict([Doc(nlp.vocab, words=["A", "bank"])])
    assert elmo.source.cache is None


@pytest.mark.parametrize("num_listeners", [1, 2])
def test_listeners_read_new_sentences_if_elmo_has_not_run(
    nlp: Language, add_elmo: AddElmo, num_listeners: int
) -> None:
    add_elmo()
    listeners = [get_listener(add_tagger(nlp, name)) for name in "ab"[:num_listeners]]
    initialize(nlp)
    doc, fresh = (Doc(nlp.vocab, words=["A", "bank", ".", "A", "river"]) for _ in range(2))
    for listener in listeners:
        listener.predict([doc])
    for changed in (doc, fresh):
        changed[3].is_sent_start = True
    (after,), (expected,) = (listeners[0].predict([x]) for x in (doc, fresh))
    assert_array_equal(after, expected)


@pytest.mark.parametrize("is_cached", [True, False])
def test_reloaded_pipeline_predicts_the_same(
    trained: Language, tmp_path: Path, is_cached: bool
) -> None:
    if not is_cached:
        trained.get_pipe("elmo").source.cache = None
    expected = predict(trained)
    trained.to_disk(tmp_path)
    reloaded = [
        spacy.load(tmp_path),
        spacy.blank("xx", config=trained.config).from_bytes(trained.to_bytes()),
    ]
    for other in reloaded:
        for one, two in zip(predict(other), expected, strict=True):
            assert_allclose(one, two, rtol=0, atol=1e-4 if is_cached else 1e-6)


def test_pickled_pipeline_predicts_the_same(trained: Language) -> None:
    import pickle

    trained.get_pipe("elmo").source.cache = None
    for one, two in zip(
        predict(pickle.loads(pickle.dumps(trained))), predict(trained), strict=True
    ):
        assert_array_equal(one, two)


def test_two_processes_predict_the_same(trained: Language) -> None:
    docs = [Doc(trained.vocab, words=words) for words in WORDS]
    alone = [[t.tag_ for t in doc] for doc in trained.pipe([doc.copy() for doc in docs])]
    piped = trained.pipe(docs, n_process=2, batch_size=2)
    assert [[token.tag_ for token in doc] for doc in piped] == alone


def test_threads_that_share_a_pipeline_get_what_one_gets(
    trained: Language,
) -> None:
    elmo = trained.get_pipe("elmo")
    elmo.source.cache = LayerCache(2**20)
    texts = [f"The bank raised rate {number}" for number in range(40)]
    alone = [(doc.tensor, [token.tag_ for token in doc]) for doc in map(trained, texts)]
    elmo.source.cache.clear()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            docs = list(pool.map(trained, texts * 4))
    finally:
        sys.setswitchinterval(before)
    for doc, (tensor, tags) in zip(docs, alone * 4, strict=True):
        assert_allclose(doc.tensor, tensor, **CLOSE)
        assert [token.tag_ for token in doc] == tags
    assert len(elmo.source.cache) == len(texts)


def test_a_training_batch_adds_the_gradients_of_its_own_docs(nlp: Language) -> None:
    docs = [Doc(nlp.vocab, words=["The", "bank"]) for _ in range(2)]
    layers = np.arange(12, dtype="f").reshape(3, 2, 2)
    batch = TrainingBatch(docs, [DocLayers(layers, [[0, 1]])] * 2, lambda gradients: None)
    ones = np.ones_like(layers)
    with pytest.warns(UserWarning, match="The biLM does not learn from a component that reads"):
        assert batch.receive([docs[1], docs[1].copy()], [ones, ones]) == ones.size
    batch.receive(docs, [ones, ones])
    assert_array_equal(batch.gradients, [ones, 2 * ones])


def test_bilm_takes_no_step_without_gradients_of_its_batch(
    nlp: Language, add_elmo: AddElmo
) -> None:
    elmo = add_elmo(frozen=False)
    listener = get_listener(add_tagger(nlp))
    examples, optimizer = initialize(nlp)
    before = copy_weights(elmo)
    nlp.update(examples, sgd=optimizer, exclude=["tagger"])
    # An entity linker passes copies of sentences to its listener.
    vectors, backprop = listener.begin_update([examples[0].predicted.copy()])
    with pytest.warns(UserWarning, match="such as an entity linker"):
        backprop(vectors)
    elmo.source.finish_batch()
    assert torch.equal(copy_weights(elmo), before)


def test_a_second_initialization_warns_that_the_bilm_is_not_reset(
    nlp: Language, add_elmo: AddElmo
) -> None:
    add_elmo(frozen=False)
    add_tagger(nlp)
    examples, optimizer = initialize(nlp)
    initialize(nlp)  # nothing has been learned yet
    for _ in range(2):  # the tagger's output begins with zeros, which pass no gradient on
        nlp.update(examples, sgd=optimizer)
    with pytest.warns(UserWarning, match="'elmo' keeps its weights"):
        initialize(nlp)


def test_initialization_of_a_saved_pipeline_warns_that_its_bilm_is_not_reset(
    nlp: Language, add_elmo: AddElmo
) -> None:
    add_elmo(frozen=False)
    add_tagger(nlp)
    initialize(nlp)
    loaded = spacy.blank("xx")
    add_elmo(loaded, frozen=False)
    add_tagger(loaded)
    loaded.from_bytes(nlp.to_bytes())
    with pytest.warns(UserWarning, match="'elmo' keeps its weights"):
        initialize(loaded)

import multiprocessing
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from numpy.testing import assert_allclose, assert_array_equal
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.vectors import Vectors

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.bundled import BUNDLED_NAME
from hf_elmo.onnx import OrtElmoModel

TEXTS = ["The bank raised its rates .", "", " ", "A river bank", "bank", "We sat by the bank ."]
CLOSE = {"rtol": 0, "atol": 1e-5}  # float32, sums in another order (DESIGN, "What always holds")

AddElmo = Callable[..., Any]


def compute_layers(model: ElmoModel, *sentences: Sequence[str]) -> list[Any]:
    """Compute the layers of each sentence by the model itself, `(layers, words, width)`."""
    results = []
    for words in sentences:
        batch = ElmoTokenizer()([list(words)], is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            states = model(**batch, output_hidden_states=True).hidden_states
        results.append(torch.cat(states).float().numpy())
    return results


# What comes out


def test_tensor_holds_the_models_mix(
    nlp: Language, add_elmo: AddElmo, tiny_model: ElmoModel
) -> None:
    add_elmo()
    doc = nlp("The bank raised its rates")
    (layers,) = compute_layers(tiny_model, [token.text for token in doc])
    assert doc.tensor.dtype == np.float32
    assert_allclose(doc.tensor, layers.mean(axis=0), **CLOSE)
    assert_allclose(doc[1].vector, layers.mean(axis=0)[1], **CLOSE)


def test_layers_are_stored_on_request(
    nlp: Language, add_elmo: AddElmo, tiny_model: ElmoModel
) -> None:
    add_elmo(store_layers=True)
    doc = nlp("The bank raised its rates")
    (layers,) = compute_layers(tiny_model, [token.text for token in doc])
    assert_allclose(doc._.elmo_layers, layers, **CLOSE)


def test_mix_is_what_the_settings_say(
    nlp: Language, add_elmo: AddElmo, tiny_model: ElmoModel
) -> None:
    add_elmo(mix={"weights": [0.0, 1.0, 2.0], "gamma": 0.5})
    doc = nlp("The bank")
    (layers,) = compute_layers(tiny_model, ["The", "bank"])
    shares = np.exp([0.0, 1.0, 2.0]) / np.exp([0.0, 1.0, 2.0]).sum()
    assert_allclose(doc.tensor, 0.5 * np.tensordot(shares, layers, 1), **CLOSE)


def test_one_layer_can_be_chosen(nlp: Language, add_elmo: AddElmo, tiny_model: ElmoModel) -> None:
    add_elmo(mix={"layers": [-1]})
    (layers,) = compute_layers(tiny_model, ["The", "bank"])
    assert_allclose(nlp("The bank").tensor, layers[-1], **CLOSE)


def test_configured_layer_norm_is_over_each_sentence(
    nlp: Language, tiny_model: ElmoModel, tmp_path: Path
) -> None:
    tiny_model.config.mix_layer_norm = "batch"
    tiny_model.save_pretrained(tmp_path)
    ElmoTokenizer().save_pretrained(tmp_path)
    nlp.add_pipe("elmo", config={"model": {"name": str(tmp_path)}})
    docs = list(nlp.pipe(["The bank", "A bank raised its rates"]))
    for doc in docs:
        (layers,) = compute_layers(tiny_model, [token.text for token in doc])
        centred = layers - layers.mean(axis=(1, 2), keepdims=True)
        normalized = centred / layers.std(axis=(1, 2), keepdims=True)
        assert_allclose(doc.tensor, normalized.mean(axis=0), **CLOSE)


def test_sentences_do_not_see_each_other(
    nlp: Language, add_elmo: AddElmo, tiny_model: ElmoModel
) -> None:
    nlp.add_pipe("sentencizer")
    add_elmo(store_layers=True)
    doc = nlp("The bank . A bank .")
    layers = compute_layers(tiny_model, ["The", "bank", "."], ["A", "bank", "."])
    assert_allclose(doc._.elmo_layers, np.concatenate(layers, axis=1), **CLOSE)


def test_white_space_has_zeros_and_changes_nothing_else(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo(store_layers=True)
    spaced = Doc(nlp.vocab, words=["\n", "The", "  ", "bank", " "])
    clean = Doc(nlp.vocab, words=["The", "bank"])
    elmo = nlp.get_pipe("elmo")
    elmo(spaced), elmo(clean)
    assert_array_equal(spaced.tensor[[0, 2, 4]], 0)
    assert_array_equal(spaced._.elmo_layers[:, [0, 2, 4]], 0)
    assert_allclose(spaced.tensor[[1, 3]], clean.tensor, **CLOSE)
    assert_allclose(spaced._.elmo, clean._.elmo, **CLOSE)
    assert_allclose(spaced[:3]._.elmo, clean[0].vector, **CLOSE)
    assert_allclose(spaced.vector, clean.vector * 2 / 5, **CLOSE)  # as spaCy counts


@pytest.mark.parametrize("words", [[], [" "], ["\n\n", " "]])
def test_docs_without_words_have_zeros(nlp: Language, add_elmo: AddElmo, words: list[str]) -> None:
    elmo = add_elmo(store_layers=True)
    doc = elmo(Doc(nlp.vocab, words=words))
    assert_array_equal(doc.tensor, np.zeros((len(words), 16)))
    assert_array_equal(doc._.elmo, np.zeros(16))
    assert doc._.elmo_layers.shape == (3, len(words), 16)
    assert_array_equal(Doc(nlp.vocab).from_bytes(doc.to_bytes()).vector, doc.vector)


@pytest.mark.parametrize("word", ["<pad>", "\U0001f469‍\U0001f680", "x" * 10_000, "<S>"])
def test_any_word_is_one_row(nlp: Language, add_elmo: AddElmo, word: str) -> None:
    doc = add_elmo()(Doc(nlp.vocab, words=["a", word, "b"]))
    assert doc.tensor.shape == (3, 16)
    assert np.abs(doc.tensor).min(axis=1).max() > 0


def test_vectors_do_not_depend_on_the_batch(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo()
    alone = [nlp(text).tensor for text in TEXTS]
    for batch_size in (1, 3, 100):
        for doc, tensor in zip(nlp.pipe(TEXTS, batch_size=batch_size), alone, strict=True):
            assert_allclose(doc.tensor, tensor, **CLOSE)


def test_pipe_gathers_no_more_words_than_its_bound(
    nlp: Language, add_elmo: AddElmo, monkeypatch: pytest.MonkeyPatch
) -> None:
    elmo = add_elmo()
    monkeypatch.setattr("spacy_elmo.component.WORDS_AT_ONCE", 5)
    taken = []
    stream = (taken.append(n) or Doc(nlp.vocab, words=["a"] * n) for n in (3, 2, 9, 1, 1))
    piped = elmo.pipe(stream, batch_size=100)
    assert len(next(piped)) == 3
    assert taken == [3, 2, 9]
    assert [len(doc) for doc in piped] == [2, 9, 1, 1]


def test_long_docs_equal_themselves_in_small_windows(nlp: Language, add_elmo: AddElmo) -> None:
    doc = Doc(nlp.vocab, words=[f"w{number % 97}" for number in range(200)])
    elmo = add_elmo(store_layers=True)
    whole = elmo(doc.copy())
    elmo.model.attrs["max_batch_tokens"] = 16
    assert_allclose(elmo(doc)._.elmo_layers, whole._.elmo_layers, **CLOSE)


def test_max_length_cuts_long_sentences(nlp: Language, add_elmo: AddElmo) -> None:
    elmo = add_elmo(max_length=2)
    doc = elmo(Doc(nlp.vocab, words=["a", "b", "c"]))
    assert_allclose(doc.tensor[:2], elmo(Doc(nlp.vocab, words=["a", "b"])).tensor, **CLOSE)


@pytest.mark.slow
def test_doc_of_100000_words_is_embedded(nlp: Language, add_elmo: AddElmo) -> None:
    doc = add_elmo()(Doc(nlp.vocab, words=["word"] * 100_000))
    assert doc.tensor.shape == (100_000, 16)


def test_static_vectors_keep_their_place(nlp: Language, add_elmo: AddElmo) -> None:
    nlp.vocab.vectors = Vectors(data=np.ones((1, 4), dtype="f"), keys=["bank"])
    add_elmo()
    doc = nlp("bank")
    assert_array_equal(doc.vector, np.ones(4))
    assert doc[0]._.elmo.shape == (16,)


def test_doc_vector_is_new_after_a_second_run(nlp: Language, add_elmo: AddElmo) -> None:
    elmo = add_elmo()
    doc = nlp("The bank")
    norm = doc.vector_norm
    elmo.mix = elmo.mix._replace(gamma=2.0)
    elmo(doc)
    assert doc.vector_norm == pytest.approx(2 * norm)


# Where it goes


def test_tensor_is_not_set_where_it_is_not_wanted(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo(set_tensor=False, store_layers=True)
    doc = nlp("The bank")
    assert doc.tensor.size == 0
    assert doc._.elmo_layers.shape == (3, 2, 16)
    with pytest.raises(ValueError, match="set_tensor = true or 'auto'"):
        _ = doc[0]._.elmo


def test_an_elmo_without_a_tensor_leaves_the_vectors_of_another(
    nlp: Language, add_elmo: AddElmo
) -> None:
    add_elmo()
    expected = nlp("The bank")._.elmo
    add_elmo(name="other", set_tensor=False, mix={"layers": [0]})
    assert_array_equal(nlp("The bank")._.elmo, expected)


@pytest.mark.filterwarnings("ignore:No component reads 'elmo'")
@pytest.mark.parametrize("order", [["tok2vec", "elmo"], ["elmo", "tok2vec"]])
def test_tensor_is_left_to_tok2vec_where_a_listener_reads_it(
    nlp: Language, add_elmo: AddElmo, order: list[str]
) -> None:
    for name in order:
        add_elmo() if name == "elmo" else nlp.add_pipe(name)
    tagger = nlp.add_pipe(
        "tagger", config={"model": {"tok2vec": {"@architectures": "spacy.Tok2VecListener.v1",
                                                "width": 96}}}
    )  # fmt: skip
    tagger.add_label("X")
    nlp.initialize()
    doc = nlp("The bank")
    assert doc.tensor.shape == (2, 96)
    assert doc[1]._.elmo.shape == (16,)


@pytest.mark.filterwarnings("ignore:No component reads 'elmo'")
def test_tensor_is_set_again_when_the_listener_of_tok2vec_is_replaced(
    nlp: Language, add_elmo: AddElmo
) -> None:
    add_elmo()
    nlp.add_pipe("tok2vec")
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 96}
    nlp.add_pipe("tagger", config={"model": {"tok2vec": listener}}).add_label("X")
    nlp.initialize()
    nlp.replace_listeners("tok2vec", "tagger", ["model.tok2vec"])
    nlp.remove_pipe("tok2vec")
    assert nlp("The bank").tensor.shape == (2, 16)


@pytest.mark.filterwarnings("ignore:No component reads 'elmo'")
def test_tensor_is_set_again_when_no_component_of_the_pipeline_reads_a_tok2vec(
    nlp: Language, add_elmo: AddElmo
) -> None:
    add_elmo()
    nlp.add_pipe("tok2vec")
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 96}
    tagger = nlp.add_pipe("tagger", config={"model": {"tok2vec": listener}})
    tagger.add_label("X")
    nlp.initialize()
    alone = spacy.blank("en")
    alone.add_pipe("elmo", source=nlp)
    assert alone("The bank").tensor.shape == (2, 16)
    nlp.remove_pipe("tagger")
    nlp.remove_pipe("tok2vec")
    assert tagger.model.has_ref("tok2vec")  # it is still in memory
    assert nlp("The bank").tensor.shape == (2, 16)


@pytest.mark.filterwarnings("ignore:No component reads 'elmo'")
def test_tensor_is_left_to_the_tok2vec_of_a_disabled_reader(
    nlp: Language, add_elmo: AddElmo, tmp_path: Path
) -> None:
    nlp.add_pipe("tok2vec")
    add_elmo()
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 96}
    nlp.add_pipe("tagger", config={"model": {"tok2vec": listener}}).add_label("X")
    nlp.initialize()
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path, disable=["tagger"])
    assert loaded("The bank").tensor.shape == (2, 96)
    loaded.enable_pipe("tagger")
    assert loaded("The bank")[0].tag_ == "X"


@pytest.mark.filterwarnings("ignore:No component reads 'elmo'")
def test_a_tensor_that_a_listener_of_an_earlier_tok2vec_reads_cannot_be_replaced(
    nlp: Language, add_elmo: AddElmo
) -> None:
    nlp.add_pipe("tok2vec", config={"model": {"width": 16}})
    add_elmo(set_tensor=True)
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16}
    with pytest.raises(ValueError, match=r"component 'tagger' needs doc\.tensor for the vec"):
        nlp.add_pipe("tagger", config={"model": {"tok2vec": listener}})


@pytest.mark.filterwarnings("ignore:No component reads 'elmo'", "ignore:.*W101")
@pytest.mark.parametrize("set_tensor", ["auto", True])
def test_vectors_are_elmos_beside_a_tok2vec_of_the_same_width(
    nlp: Language, add_elmo: AddElmo, set_tensor: Any
) -> None:
    add_elmo(set_tensor=set_tensor)
    expected = nlp("The bank").tensor
    nlp.add_pipe("tok2vec", config={"model": {"width": 16}})
    nlp.initialize()
    for copied in (nlp, pickle.loads(pickle.dumps(nlp))):
        doc = copied("The bank")
        assert_array_equal(doc._.elmo_vectors, expected)
    with pytest.raises(ValueError, match="This doc holds no ELMo vectors"):
        _ = Doc.from_docs([nlp("The bank"), nlp("A river")])[0]._.elmo
    with nlp.select_pipes(disable="tok2vec"):
        assert_array_equal(nlp("The bank").tensor, expected)
    assert np.abs(doc.tensor - expected).max() > 0.01


def test_tensor_is_set_beside_a_tok2vec_that_nothing_reads(
    nlp: Language, add_elmo: AddElmo
) -> None:
    nlp.add_pipe("tok2vec")
    add_elmo()
    nlp.initialize()
    assert nlp("The bank").tensor.shape == (2, 16)


# How it is found


@pytest.mark.slow
def test_pipelines_without_elmo_do_not_import_transformers() -> None:
    code = (
        "import sys, spacy; spacy.blank('en'); assert 'spacy_elmo.component' in sys.modules; "
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_default_model_is_the_bundled_one(nlp: Language) -> None:
    nlp.add_pipe("elmo")
    assert nlp.get_pipe_config("elmo")["model"]["name"] == BUNDLED_NAME


def test_pipeline_is_known_to_assign_the_tensor(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo()
    assert "doc.tensor" in nlp.analyze_pipes()["summary"]["elmo"]["assigns"]


# Mistakes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 0}, "Expected max_length of at least 1, or None, got 0"),
        ({"max_batch_tokens": -1}, "Expected max_batch_tokens of at least 1"),
        ({"frozen": False, "store_weights": False}, "Expected store_weights = true where frozen"),
        ({"mix": {"layers": []}}, "Expected at least one layer"),
        ({"device": "gpu"}, "Expected device"),
        ({"model": {"dtype": "float8"}}, "'float8' is not .*'float32', 'bfloat16', 'float16'"),
        ({"model": {"quantization": "int4"}}, r"model -> quantization\s.*'int8'"),
        ({"model": {"dtype": "bfloat16"}, "frozen": False}, 'Expected model.dtype = "float32"'),
        ({"segment": "sentences"}, "segment"),
    ],
)
def test_wrong_settings_are_errors_at_once(
    add_elmo: AddElmo, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        add_elmo(**settings)


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ({"weights": [0.0, 1.0]}, "Expected 3 mix weights .* got 2"),
        ({"layers": [3]}, "Expected mix layers from 0 .* to 2"),
    ],
)
def test_mix_that_does_not_fit_the_model_is_an_error(
    nlp: Language, add_elmo: AddElmo, mix: dict[str, Any], message: str
) -> None:
    add_elmo(mix=mix)
    with pytest.raises(ValueError, match=message):
        nlp.initialize()


def test_docs_without_sentences_are_an_error_where_sentences_are_asked_for(
    nlp: Language, add_elmo: AddElmo
) -> None:
    add_elmo(segment="sents")
    with pytest.raises(ValueError, match="'sentencizer'"):
        nlp("The bank")


# On disk, in bytes, in other processes


def reload_from_disk(nlp: Language, tmp_path: Path) -> Language:
    nlp.to_disk(tmp_path / "pipeline")
    return spacy.load(tmp_path / "pipeline")


def reload_from_bytes(nlp: Language, tmp_path: Path) -> Language:
    return spacy.blank("xx", config=nlp.config).from_bytes(nlp.to_bytes())


def reload_from_pickle(nlp: Language, tmp_path: Path) -> Language:
    import pickle

    return pickle.loads(pickle.dumps(nlp))


RELOADS = [reload_from_disk, reload_from_bytes, reload_from_pickle]


@pytest.mark.parametrize("reload", RELOADS)
@pytest.mark.parametrize("is_used_before", [True, False])
def test_reloaded_pipeline_gives_the_same_without_its_source(
    nlp: Language,
    add_elmo: AddElmo,
    tiny_folder: Path,
    tmp_path: Path,
    reload: Callable[[Language, Path], Language],
    is_used_before: bool,
) -> None:
    add_elmo(mix={"weights": [0.0, 1.0, 2.0]})
    if is_used_before or reload is reload_from_pickle:
        nlp("Read the weights")
    reloaded = reload(nlp, tmp_path)
    tensor = nlp("The bank").tensor
    shutil.rmtree(tiny_folder)
    assert_array_equal(reloaded("The bank").tensor, tensor)


@pytest.mark.parametrize("reload", RELOADS)
@pytest.mark.parametrize("store_weights", [True, False])
@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"quantization": "int8"}])
def test_reduced_precision_is_that_of_the_model_and_survives_reloading(
    nlp: Language,
    tiny_folder: Path,
    tiny_model: ElmoModel,
    tmp_path: Path,
    settings: dict[str, str],
    store_weights: bool,
    reload: Callable[[Language, Path], Language],
) -> None:
    model = {"name": str(tiny_folder), **settings}
    nlp.add_pipe("elmo", config={"model": model, "store_weights": store_weights})
    tensor = nlp("The bank").tensor
    (exact,) = compute_layers(tiny_model, ["The", "bank"])
    if "quantization" in settings:
        tiny_model = OrtElmoModel.from_model(tiny_model, quantization="int8")
    else:
        tiny_model.bfloat16().float()  # small models are computed in float32, from rounded weights
    (layers,) = compute_layers(tiny_model, ["The", "bank"])
    assert tensor.dtype == np.float32
    assert abs(tensor - exact.mean(axis=0)).max() > 1e-4
    assert_allclose(tensor, layers.mean(axis=0), rtol=0, atol=1e-5 * abs(tensor).max())
    assert_array_equal(reload(nlp, tmp_path)("The bank").tensor, tensor)


@pytest.mark.parametrize("reload", RELOADS)
def test_pipeline_without_weights_reads_them_from_their_source(
    nlp: Language,
    add_elmo: AddElmo,
    tmp_path: Path,
    reload: Callable[[Language, Path], Language],
) -> None:
    add_elmo(store_weights=False)
    tensor = nlp("The bank").tensor
    assert_array_equal(reload(nlp, tmp_path)("The bank").tensor, tensor)
    assert not list((tmp_path / "pipeline").rglob("*.safetensors"))


def test_doc_vector_does_not_depend_on_processes(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo()
    text = " The   bank \n raised its rates"
    (doc,) = nlp.pipe([text], n_process=2)
    assert doc.vector_norm == pytest.approx(nlp(text).vector_norm)


def test_two_processes_give_the_same(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo(store_layers=True)
    alone = list(nlp.pipe(TEXTS))
    for doc, other in zip(nlp.pipe(TEXTS, n_process=2, batch_size=2), alone, strict=True):
        assert_allclose(doc.tensor, other.tensor, **CLOSE)
        assert_allclose(doc._.elmo_layers, other._.elmo_layers, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_two_processes_of_their_own_give_the_same(
    nlp: Language, add_elmo: AddElmo, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_elmo()
    alone = list(nlp.pipe(TEXTS))
    context = multiprocessing.get_context(method)
    monkeypatch.setattr("spacy.language.mp.Process", context.Process)
    monkeypatch.setattr("spacy.language.mp.Queue", context.Queue)
    for doc, other in zip(nlp.pipe(TEXTS, n_process=2, batch_size=2), alone, strict=True):
        assert_allclose(doc.tensor, other.tensor, **CLOSE)
        assert_allclose(doc._.elmo, other._.elmo, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [True, False])
def test_fork_of_a_process_with_many_threads_does_not_hang(frozen: bool, tiny_folder: Path) -> None:
    code = f"""
import spacy, torch
from spacy.training import Example
torch.set_num_threads(4)
x = torch.ones(2000, 2000); x @ x
nlp = spacy.blank("xx")
nlp.add_pipe("elmo", config={{"frozen": {frozen}, "model": {{"name": {str(tiny_folder)!r}}}}})
texts = ["a bank " * 500] * 8
if not {frozen}:  # the workers take the waiting step
    listener = {{"@architectures": "spacy_elmo.ElmoListener.v1"}}
    nlp.add_pipe("tagger", config={{"model": {{"tok2vec": listener}}}})
    examples = [Example.from_dict(nlp.make_doc(texts[0]), {{"tags": ["D", "N"] * 500}})]
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
else:
    list(nlp.pipe(texts))
docs = list(nlp.pipe(texts, n_process=2, batch_size=2))
for doc, other in zip(docs, nlp.pipe(texts), strict=True):
    assert abs(doc.tensor - other.tensor).max() < 1e-5
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=900)


def test_docs_keep_their_layers_in_bytes(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo(store_layers=True)
    doc = nlp("The bank")
    loaded = Doc(nlp.vocab).from_bytes(doc.to_bytes())
    assert_array_equal(loaded._.elmo_layers, doc._.elmo_layers)
    assert_array_equal(loaded[1]._.elmo, doc[1]._.elmo)


def test_docs_keep_their_layers_in_a_doc_bin(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo(store_layers=True)
    doc = nlp("The bank")
    data = DocBin(docs=[doc], store_user_data=True).to_bytes()
    (loaded,) = DocBin().from_bytes(data).get_docs(nlp.vocab)
    assert_array_equal(loaded._.elmo_layers, doc._.elmo_layers)


def test_failing_docs_go_to_the_error_handler(nlp: Language, add_elmo: AddElmo) -> None:
    add_elmo(segment="sents")
    failed: list[Doc] = []
    nlp.set_error_handler(lambda name, component, docs, error: failed.extend(docs))
    assert list(nlp.pipe(["The bank", "A bank"])) == []
    assert [doc.text for doc in failed] == ["The bank", "A bank"]


def test_using_saving_and_loading_a_pipeline_draws_no_bars(
    nlp: Language, add_elmo: AddElmo, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    add_elmo()
    capfd.readouterr()
    nlp("The bank")
    nlp.to_disk(tmp_path)
    spacy.load(tmp_path)
    assert capfd.readouterr() == ("", "")

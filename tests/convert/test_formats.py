"""Each format is found, completed by the files beside it, and read as its program does."""

import gzip
import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from bilm_tf import WORDS, evaluate, make_bilm, run_bilm, run_model, write_bilm
from old_checkpoints import (
    CHARACTERS,
    LEXICON,
    META,
    allennlp_weights,
    make_many_langs,
    mix_weights,
    write_allennlp,
    write_many_langs,
    write_nlpl,
)
from tensorflow_checkpoint import module_variables, write_trained, write_variables

from convert import ConversionError, convert_checkpoint
from convert.formats.bilm_names import read_vocabulary, standard_name
from convert.formats.many_langs import read_lexicon
from convert.formats.tensor_bundle import read_variables
from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoModel, ElmoTokenizer

SENTENCE = ["the", "naïve", "bank", "unheard-of", ""]
TOLERANCE = {"atol": 1e-5, "rtol": 0.0}
STANDARD = "RNN_{}/RNN/MultiRNNCell/Cell{}/LSTMCell/{}"
WHOLE = {"cell_clip": 3, "proj_clip": 3, "max_characters": 50}  # as options are guessed
GUESS = "relu, clips of 3, skip connections and 50"


def replace_dataset(weights: Path, name: str, **keywords: Any) -> None:
    with h5py.File(weights, "a") as file:
        del file[name]
        file.create_dataset(name, **keywords)


# --- bilm-tf: names, HDF5 ---


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_P_0", STANDARD.format(1, 1, "W_P_0")),
        ("RNN_1/RNN/LSTMCell/B", STANDARD.format(1, 0, "B")),  # one layer
        ("rnn/LSTMCell/kernel", STANDARD.format(0, 0, "W_0")),  # one direction
        (  # of the trainer
            "RNN_0/rnn/multi_rnn_cell/cell_1/lstm_cell/projection/kernel",
            STANDARD.format(0, 1, "W_P_0"),
        ),
        ("RNN_0/RNN/MultiRNNCell/Cell1/rnn/lstm_cell/bias", STANDARD.format(0, 1, "B")),  # module
        ("CNN/W_cnn_0", "CNN/W_cnn_0"),
        ("RNN_2/RNN/LSTMCell/B", "RNN_2/RNN/LSTMCell/B"),
    ],
)
def test_variables_have_one_standard_name(name: str, expected: str) -> None:
    assert standard_name(name) == expected


@pytest.mark.parametrize("dtype", ["<f2", "<f8", ">f4"])
def test_other_float_types_are_read(dtype: str, weights: Path, place: Path) -> None:
    array = make_bilm().variables["char_embed"].astype(dtype)
    replace_dataset(weights, "char_embed", data=array, compression="gzip")
    convert_checkpoint(weights, place / "model")
    expected = evaluate(make_bilm(cell_clip=0.4, proj_clip=0.3), ["bank"])
    np.testing.assert_allclose(run_model(place / "model", ["bank"]), expected, atol=1e-2, rtol=0)


def test_a_stored_row_for_padding_is_removed(weights: Path, place: Path) -> None:
    table = np.insert(make_bilm().variables["char_embed"], 0, 0, axis=0)
    replace_dataset(weights, "char_embed", data=table)
    config = convert_checkpoint(weights, place / "model").config
    assert config.char_vocab_size == 262


def test_a_scalar_is_omitted_with_a_note(weights: Path, place: Path) -> None:
    with h5py.File(weights, "a") as file:
        file["global_step"] = 660
    assert convert_checkpoint(weights, place / "model").notes == ["global_step: no part of a biLM"]


@pytest.mark.parametrize("name", ["x_options.json", "options.json"])
def test_options_are_found_by_both_customary_names(name: str, tmp_path: Path) -> None:
    path = write_bilm(tmp_path, make_bilm()).rename(tmp_path / "x_weights.hdf5")
    (tmp_path / "options.json").rename(tmp_path / name)
    conversion = convert_checkpoint(path, tmp_path / "model")
    assert [path.name for path in conversion.files] == ["x_weights.hdf5", name]


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_softmax_needs_its_vocabulary(is_inside: bool, weights: Path, place: Path) -> None:
    own = weights if is_inside else weights.with_name("softmax_weights.hdf5")
    with h5py.File(own, "a") as file:
        file["softmax/W"], file["softmax/b"] = np.ones((6, 4), "f"), np.ones(6, "f")
    conversion = convert_checkpoint(weights, place / "without")
    assert conversion.notes == ["softmax/W: needs --vocabulary", "softmax/b: needs --vocabulary"]
    lines = [f"{word}\n" for word in [*WORDS[2:], *WORDS[:2]]]
    (place / "words.txt").write_text("".join(lines), encoding="utf-8")
    convert_checkpoint(weights, place / "model", vocabulary=place / "words.txt")
    config = ElmoForPreTraining.from_pretrained(place / "model").config
    assert (config.vocab_size, config.sentence_start_target_id) == (6, 4)
    (place / "words.txt").write_text("".join([*lines, "more\n"]), encoding="utf-8")
    with pytest.raises(ConversionError, match=r"words.txt: expected 6 words, found 7"):
        convert_checkpoint(weights, place / "other", vocabulary=place / "words.txt")


def test_a_vocabulary_without_a_softmax_is_named(weights: Path, place: Path) -> None:
    (place / "words.txt").write_text("<S>\n</S>\n<UNK>\n")
    conversion = convert_checkpoint(weights, place / "model", vocabulary=place / "words.txt")
    assert conversion.notes == ["words.txt: there is no softmax over its words"]


def test_white_space_and_the_line_that_is_no_word_are_omitted(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"<S>\r\n</S>\n<UNK>\n the \t\n!!!MAXTERMID\na\xe2\x80\xa8b")
    assert read_vocabulary(path) == ["<S>", "</S>", "<UNK>", "the", "a\u2028b"]


# --- TensorFlow ---


@pytest.mark.parametrize("scope", ["bilm/", "module/bilm/"])
def test_module_brings_its_trained_mix_and_no_options(scope: str, tmp_path: Path) -> None:
    bilm = make_bilm(**WHOLE)
    prefix = scope.removesuffix("bilm/")
    mix = {
        f"{prefix}aggregation/weights": np.array([0.1, 2, -1], np.float32),
        f"{prefix}aggregation/scaling": np.float32(0.7),
    }
    module = tmp_path / "module"
    write_variables(module / "variables/variables", module_variables(bilm, scope) | mix)
    with pytest.warns(UserWarning, match=GUESS):
        conversion = convert_checkpoint(module, tmp_path / "model")
    got = run_model(tmp_path / "model", SENTENCE)
    np.testing.assert_allclose(got, evaluate(bilm, SENTENCE), **TOLERANCE)
    assert conversion.notes == [f"variables {scope}Variable"]
    config = ElmoModel.from_pretrained(tmp_path / "model").config
    np.testing.assert_allclose(config.mix_weights, [0.1, 2, -1], rtol=1e-6)
    assert config.mix_gamma == pytest.approx(0.7)


def test_mixes_of_several_tasks_keep_their_names(tmp_path: Path) -> None:
    mixes = {}
    for number, task in enumerate(("input", "output")):
        mixes[f"{task}_ELMo_W"] = np.full(3, number, np.float32)
        mixes[f"{task}_ELMo_gamma"] = np.array([number + 0.5], np.float32)
    prefix = write_variables(tmp_path / "task", module_variables(make_bilm(), "bilm/") | mixes)
    (tmp_path / "options.json").write_text(json.dumps(make_bilm().options))
    config = convert_checkpoint(prefix, tmp_path / "model").config
    assert config.mix_weights is None
    assert json.loads((tmp_path / "model/scalar_mixes.json").read_text()) == {
        "input": {"weights": [0, 0, 0], "gamma": 0.5, "layer_norm": False},
        "output": {"weights": [1, 1, 1], "gamma": 1.5, "layer_norm": False},
    }


def test_options_of_a_model_in_the_folder_above_are_not_taken(tmp_path: Path) -> None:
    write_trained(tmp_path / "drawer" / "german", make_bilm(**WHOLE))
    options = tmp_path / "drawer" / "german" / "options.json"
    options.rename(tmp_path / "drawer" / "options.json")
    with pytest.warns(UserWarning, match=GUESS):
        convert_checkpoint(tmp_path / "drawer" / "german", tmp_path / "model")


@pytest.mark.parametrize(
    "name", [".", "checkpoint", "model.ckpt-660", "model.ckpt-660.index", "model.ckpt-660.meta"]
)
def test_any_file_of_a_checkpoint_names_it(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    write_trained(folder, make_bilm())
    write_variables(folder / "model.ckpt-1", {"x": np.ones(1, np.float32)})
    (folder / "model.ckpt-660.meta").touch()
    text = 'model_checkpoint_path: "/old/place/model.ckpt-660"\nall_model_checkpoint_paths: "x"\n'
    (folder / "checkpoint").write_text(text)
    conversion = convert_checkpoint(folder / name, tmp_path / "model")
    assert [path.name for path in conversion.files] == [
        "model.ckpt-660.index",
        "model.ckpt-660.data-00000-of-00001",
        "options.json",
        "vocab.txt",
    ]


@pytest.mark.parametrize("dtype", ["<f2", "<f8"])
def test_other_float_types_of_tensorflow_are_read(dtype: str, tmp_path: Path) -> None:
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    variables = read_variables(write_variables(tmp_path / "model", {"x": array}))
    np.testing.assert_array_equal(variables["x"], array)
    assert variables["x"].dtype == np.float32


# --- AllenNLP ---


@pytest.mark.parametrize("scope", ["", "_elmo_lstm.", "_elmo._elmo_lstm."])
@pytest.mark.parametrize("name", ["elmo.th", "elmo.bin"])
def test_weights_of_elmo_alone_are_read(scope: str, name: str, tmp_path: Path) -> None:
    bilm = make_bilm(cell_clip=0.4, proj_clip=0.3)
    weights = {scope + key: value for key, value in allennlp_weights(bilm).items()}
    torch.save(weights, tmp_path / name)
    (tmp_path / "elmo_options.json").write_text(json.dumps(bilm.options))
    convert_checkpoint(tmp_path / name, tmp_path / "model")
    got = run_model(tmp_path / "model", SENTENCE)
    np.testing.assert_allclose(got, evaluate(bilm, SENTENCE), **TOLERANCE)


@pytest.mark.parametrize("layer_norm", [True, False])
def test_mix_of_a_task_becomes_the_configured_one(layer_norm: bool, tmp_path: Path) -> None:
    mix = mix_weights(0, [0.5, -1, 2], 1.5)
    task = write_allennlp(tmp_path / "task", make_bilm(), mix, do_layer_norm=layer_norm)
    differs = pytest.warns(match="also counts <S> and </S>") if layer_norm else nullcontext()
    with differs:
        conversion = convert_checkpoint(task, tmp_path / "model")
    config = ElmoModel.from_pretrained(tmp_path / "model").config
    assert (config.mix_weights, config.mix_gamma) == ([0.5, -1, 2], 1.5)
    assert config.mix_layer_norm == ("batch" if layer_norm else "none")
    assert conversion.notes == ["weights.th: 1 tensors of the task's own layers"]
    card = (tmp_path / "model/README.md").read_text(encoding="utf-8")
    assert "Omitted: `weights.th: 1 tensors of the task" in card
    assert "the learned scalar mixes: `crf_tagger.scalar_mix_0`." in card


def test_several_mixes_are_named_by_their_task(tmp_path: Path) -> None:
    mixes = mix_weights(0, [1, 2, 3], 4) | mix_weights(1, [5, 6, 7], 8)
    convert_checkpoint(write_allennlp(tmp_path / "task", make_bilm(), mixes), tmp_path / "model")
    assert json.loads((tmp_path / "model/scalar_mixes.json").read_text()) == {
        "crf_tagger.scalar_mix_0": {"weights": [1, 2, 3], "gamma": 4, "layer_norm": False},
        "crf_tagger.scalar_mix_1": {"weights": [5, 6, 7], "gamma": 8, "layer_norm": False},
    }
    assert ElmoModel.from_pretrained(tmp_path / "model").config.mix_weights is None


def test_options_are_found_where_allennlp_archives_them(tmp_path: Path) -> None:
    task = write_allennlp(tmp_path / "task", make_bilm(activation="tanh"))
    (task / "fta").mkdir()
    archived = task / "fta/model.text_field_embedder.token_embedders.elmo.options_file"
    (task / "options.json").rename(archived)
    assert convert_checkpoint(task, tmp_path / "model").config.char_activation == "tanh"


@pytest.mark.parametrize("is_published", [True, False])
def test_options_that_are_nowhere_are_guessed(is_published: bool, tmp_path: Path) -> None:
    name = f"elmo_2x4096_512_2048cnn_2xhighway_{'options' * is_published}.json"
    task = write_allennlp(tmp_path / "task", make_bilm(**WHOLE), options_file=f"https://h/{name}")
    (task / "options.json").unlink()
    guess = nullcontext() if is_published else pytest.warns(UserWarning, match=GUESS)
    with guess:
        convert_checkpoint(task, tmp_path / "model")
    got = run_model(tmp_path / "model", SENTENCE)
    np.testing.assert_allclose(got, evaluate(make_bilm(**WHOLE), SENTENCE), **TOLERANCE)


# --- ELMoForManyLangs ---


def test_lexicons_are_saved_with_the_tokenizer(tmp_path: Path) -> None:
    convert_checkpoint(write_many_langs(tmp_path / "source", make_many_langs()), tmp_path / "model")
    tokenizer = ElmoTokenizer.from_pretrained(tmp_path / "model")
    assert (tokenizer.char_vocab, tokenizer.word_vocab) == (CHARACTERS, LEXICON)
    assert tokenizer.unknown == "<oov>"
    card = (tmp_path / "model/README.md").read_text(encoding="utf-8")
    assert "tokenised as in Universal Dependencies" in card
    assert "The model reads code points as they are" in card


def test_words_alone_are_read(tmp_path: Path) -> None:
    model = make_many_langs()
    folder = write_many_langs(tmp_path / "source", model)
    tokens = torch.load(folder / "token_embedder.pkl", weights_only=True)
    vectors = tokens["word_emb_layer.embedding.weight"]
    tokens["projection.weight"] = tokens["projection.weight"][:, : vectors.shape[1]]
    kept = ("word_emb_layer.embedding.weight", "projection.weight", "projection.bias")
    torch.save({name: tokens[name] for name in kept}, folder / "token_embedder.pkl")
    (folder / "char.dic").unlink()
    convert_checkpoint(folder, tmp_path / "model")

    weights = {name: a.astype(np.float64) for name, a in model.bilm.variables.items()}
    table = vectors.double().numpy() @ weights["CNN_proj/W_proj"][: vectors.shape[1]]
    words = ["ab", "zz", "\u3000"]
    rows = [LEXICON.index(x if x in LEXICON else "<oov>") for x in ["<bos>", *words, "<eos>"]]
    expected = run_bilm(model.bilm, weights, (table + weights["CNN_proj/b_proj"])[rows])
    np.testing.assert_allclose(run_model(tmp_path / "model", words), expected, **TOLERANCE)


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ('{"config_path": "/users4/someone/configs/cnn.json"}', "cnn.json"),
        ('{"config_path": "configs/cnn.json"}', "configs/cnn.json"),
        (json.dumps({"config_path": r"C:\elmo\configs\cnn.json"}), "cnn.json"),
        (None, "config.json"),  # the settings themselves
        (None, "../named.json"),
    ],
)
def test_settings_are_found(config: str | None, place: str, tmp_path: Path) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs(activation="tanh"))
    (folder / "configs").mkdir()
    (folder / "cnn.json").rename(folder / place)
    if config is not None:
        (folder / "config.json").write_text(config)
    options = folder / place if place.startswith("..") else None
    conversion = convert_checkpoint(folder, tmp_path / "model", options=options)
    assert conversion.config.char_activation == "tanh"


@pytest.mark.parametrize("name", ["cnn_50_100_512_4096_sample.json", "lost.json"])
def test_settings_that_are_nowhere_are_guessed(name: str, tmp_path: Path) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs())
    (folder / "config.json").write_text(json.dumps({"config_path": f"/users4/configs/{name}"}))
    is_lost = name == "lost.json"
    with pytest.warns(UserWarning, match=GUESS) if is_lost else nullcontext():
        config = convert_checkpoint(folder, tmp_path / "model").config
    assert (config.cell_clip, config.projection_clip, config.char_activation) == (3, 3, "relu")
    assert config.max_characters_per_token == 50


def test_lexicon_is_read_as_the_program_does(tmp_path: Path) -> None:
    path = tmp_path / "char.dic"
    path.write_text("a\t0\r\n\u3000\t1\n b\t2 \na\t3\n", encoding="utf-8")
    assert read_lexicon(path, 4) == {"a": 3, "\u3000": 1, "b": 2}
    path.write_text("a\t9\n", encoding="utf-8")
    with pytest.raises(ConversionError, match=r"char.dic, line 1: expected a token, a tab and a"):
        read_lexicon(path, 4)


def test_a_row_without_entry_keeps_its_place(tmp_path: Path) -> None:
    folder = write_many_langs(tmp_path / "source", make_many_langs())
    lines = (folder / "word.dic").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "word.dic").write_text("".join(lines[:4] + lines[5:]), encoding="utf-8")
    convert_checkpoint(folder, tmp_path / "model")
    tokenizer = ElmoTokenizer.from_pretrained(tmp_path / "model")
    ids = tokenizer([["ab", "天"]], is_split_into_words=True)["word_input_ids"]
    assert ids[0].tolist() == [1, 6]


@pytest.mark.parametrize("name", ["char", "wordchar"])
def test_activations_are_those_of_the_program(name: str, oracle: Path, tmp_path: Path) -> None:
    convert_checkpoint(oracle / f"models/many_langs_{name}", tmp_path / "model")
    model = ElmoModel.from_pretrained(tmp_path / "model").eval()
    tokenizer = ElmoTokenizer.from_pretrained(tmp_path / "model")
    text = (oracle / "expected/many_langs_sentences.json").read_text(encoding="utf-8")
    state = None
    with np.load(oracle / f"expected/many_langs_{name}.npz") as stored:
        for batch, keys in (("s1", ["s1"]), ("s2", ["s2_stateful", "s2_fresh"])):
            words = json.loads(text)[batch]
            # The state goes from row to row of batches that are sorted by length.
            order = sorted(range(len(words)), key=lambda i: -len(words[i]))
            inputs = tokenizer(
                [words[i] for i in order],
                is_split_into_words=True,
                padding=True,
                return_tensors="pt",
            )
            for key in keys:
                start = None if key == "s2_fresh" else state
                with torch.no_grad():
                    outputs = model(**inputs, state=start, output_hidden_states=True)
                for row, i in enumerate(order):
                    got = torch.stack(outputs.hidden_states)[:, row, : len(words[i])]
                    np.testing.assert_allclose(got.numpy(), stored[f"{key}/{i}"], **TOLERANCE)
                state = outputs.state


# --- The NLPL repository ---


@pytest.mark.parametrize("is_packed", [True, False])
def test_model_of_the_repository_is_read_with_its_description(
    is_packed: bool, tmp_path: Path
) -> None:
    folder = write_nlpl(tmp_path / "source", make_bilm(reads_words=True))
    if is_packed:
        text = (folder / "vocab.txt").read_bytes()
        (folder / "vocab.txt.gz").write_bytes(gzip.compress(text))
        (folder / "vocab.txt").unlink()
    shutil.copy(folder / "model.hdf5", folder / "other.hdf5")  # meta.json names model.hdf5
    conversion = convert_checkpoint(folder, tmp_path / "model")
    names = ["model.hdf5", "options.json", "vocab.txt" + ".gz" * is_packed, "meta.json"]
    assert [path.name for path in conversion.files] == names
    card = (tmp_path / "model/README.md").read_text(encoding="utf-8")
    assert f"Model `{META['handle']}` of the NLPL repository." in card
    assert "Trained by `Somebody`, `Another`." in card
    assert "Corpus: `Norwegian Web as Corpus` (1,687,000,000 tokens)." in card
    assert "\n- nb\n" in card


def test_model_of_elmo_for_many_langs_in_the_repository_is_read(tmp_path: Path) -> None:
    source = write_many_langs(tmp_path / "source", make_many_langs())
    (source / "meta.json").write_text(json.dumps(META))
    conversion = convert_checkpoint(source, tmp_path / "model")
    assert (conversion.format, conversion.config.forget_bias) == ("nlpl", 0)


# --- Folders of save_pretrained ---


def test_the_mix_that_a_head_has_learned_is_kept(place: Path) -> None:
    from hf_elmo import ElmoForTokenClassification

    sizes = {"projection_size": 4, "cell_size": 6, "char_filters": [[1, 3]]}
    head = ElmoForTokenClassification(ElmoConfig(**sizes, mix_layer_norm="sentence"))
    (mix,) = head.features.scalar_mixes
    with torch.no_grad():
        mix.weights.copy_(torch.arange(len(mix.weights)))
        mix.gamma.fill_(0.5)
    head.save_pretrained(place / "head")
    result = convert_checkpoint(place / "head", place / "copy")
    assert result.notes == ["tensors classifier.weight, classifier.bias"]
    config = ElmoModel.from_pretrained(place / "copy").config
    assert (config.mix_weights, config.mix_gamma) == (mix.weights.tolist(), 0.5)
    assert config.mix_layer_norm == "sentence"


def test_a_folder_in_shards_keeps_its_tokenizer(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    model = ElmoModel.from_pretrained(place / "model")
    (place / "model/model.safetensors").unlink()
    model.save_pretrained(place / "model", max_shard_size="2KB")
    tokenizer = ElmoTokenizer.from_pretrained(place / "model", padding_side="left")
    tokenizer.save_pretrained(place / "model")
    convert_checkpoint(place / "model", place / "copy")
    np.testing.assert_array_equal(*(run_model(place / x, SENTENCE) for x in ("model", "copy")))
    assert ElmoTokenizer.from_pretrained(place / "copy").padding_side == "left"


def test_a_model_saved_without_its_softmax_predicts_no_words(
    tiny_config: ElmoConfig, place: Path
) -> None:
    tiny_config.vocab_size = 20
    ElmoModel(tiny_config).save_pretrained(place / "one")
    assert convert_checkpoint(place / "one", place / "two").config.vocab_size == 0

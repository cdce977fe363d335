"""bilm-tf's HDF5 files become models that compute the same, and come back unchanged."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from bilm_tf import WORDS, Bilm, evaluate, make_bilm, run_model, write_bilm
from safetensors import safe_open
from safetensors.torch import load_file

from convert import ConversionError, convert_checkpoint, layout
from convert.formats import bilm_hdf5
from convert.layout import Sources
from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoModel, ElmoTokenizer
from hf_elmo.language_model.vocabulary import VOCABULARY_NAME, write_words

SENTENCES = [["the", "naïve", "bank", "unheard-of"], ["bank"], ["", "🐍🐍🐍🐍"]]
CLIPS = {"cell_clip": 0.4, "proj_clip": 0.3}
VARIANTS: dict[str, dict[str, Any]] = {
    "everything": CLIPS,
    "one layer": {"num_layers": 1, **CLIPS},
    "three layers": {"num_layers": 3, **CLIPS},
    "unidirectional": {"is_bidirectional": False, **CLIPS},
    "unidirectional, one layer": {"is_bidirectional": False, "num_layers": 1},
    "words": {"reads_words": True, **CLIPS},
    "words, unidirectional": {"reads_words": True, "is_bidirectional": False},
    "highways not named": {"num_highways": None},
    "no highways": {"num_highways": 0},
    "two highways": {"num_highways": 2},
    "no projection of filters": {"filters": ((1, 1), (3, 3))},
    "no projection of cells": {"dim": 4, **CLIPS},
    "clip of cells": {"cell_clip": 0.4},
    "clip of projection": {"proj_clip": 0.3, "cell_clip": None},
    "clip of 0": {"proj_clip": 0, "cell_clip": 0},
    "no skip connections": {"skips": False},
    "tanh": {"activation": "tanh"},
    "long words": {"max_characters": 60},
    "a row too many": {"num_rows": 262},
}


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def bilm(request: pytest.FixtureRequest) -> Bilm:
    return make_bilm(**request.param)


def read_variables(path: Path) -> dict[str, np.ndarray]:
    variables = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: (
                variables.update({name: item[...]}) if isinstance(item, h5py.Dataset) else None
            )
        )
    return variables


@pytest.mark.parametrize("words", SENTENCES)
def test_converted_model_computes_what_bilm_tf_does(
    bilm: Bilm, words: list[str], tmp_path: Path
) -> None:
    convert_checkpoint(write_bilm(tmp_path, bilm), tmp_path / "model")
    got = run_model(tmp_path / "model", words)
    np.testing.assert_allclose(got, evaluate(bilm, words), atol=1e-5, rtol=0)


def test_the_way_back_gives_identical_variables_and_options(bilm: Bilm, tmp_path: Path) -> None:
    convert_checkpoint(write_bilm(tmp_path, bilm), tmp_path / "model")
    convert_checkpoint(tmp_path / "model", tmp_path / "back.hdf5", to="bilm-hdf5")

    variables = read_variables(tmp_path / "back.hdf5")
    assert variables.keys() == bilm.variables.keys()
    for name, array in bilm.variables.items():
        np.testing.assert_array_equal(variables[name], array, err_msg=name)
        assert variables[name].dtype == np.float32
    options = json.loads((tmp_path / "back_options.json").read_text())
    lstm = {name: value for name, value in bilm.options["lstm"].items() if value}
    assert {name: value for name, value in options["lstm"].items() if value} == lstm
    assert options["bidirectional"] == bilm.options["bidirectional"]
    if bilm.words:
        assert (tmp_path / "back_vocab.txt").read_text(encoding="utf-8").split() == bilm.words


def test_row_of_no_token_is_zeros(bilm: Bilm, tmp_path: Path) -> None:
    convert_checkpoint(write_bilm(tmp_path, bilm), tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    name = "word_embedding" if bilm.words else "char_embedding"
    assert not tensors[f"token_encoder.{name}.weight"][0].any()


def test_a_stored_row_of_no_token_is_removed(tmp_path: Path) -> None:
    bilm = make_bilm()
    weights = write_bilm(tmp_path, bilm)
    with h5py.File(weights, "a") as file:
        table = np.insert(file["char_embed"][...], 0, 0, axis=0)
        del file["char_embed"]
        file["char_embed"] = table
    convert_checkpoint(weights, tmp_path / "model")
    got = run_model(tmp_path / "model", SENTENCES[0])
    np.testing.assert_allclose(got, evaluate(bilm, SENTENCES[0]), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "relative_error"), [("float32", 0), ("float16", 2**-11), ("bfloat16", 2**-8)]
)
def test_numbers_are_rounded_to_the_type_asked_for(
    dtype: str, relative_error: float, tmp_path: Path
) -> None:
    bilm = make_bilm()
    convert_checkpoint(write_bilm(tmp_path, bilm), tmp_path / "model", dtype=dtype)
    with safe_open(tmp_path / "model" / "model.safetensors", framework="pt") as file:
        stored = file.get_tensor("token_encoder.projection.weight")
    assert str(stored.dtype) == f"torch.{dtype}"
    expected = bilm.variables["CNN_proj/W_proj"].T
    np.testing.assert_allclose(stored.float(), expected, rtol=relative_error, atol=1e-7)
    # Whatever the file's type, the model computes in float32: half precision is slow on CPUs.
    assert ElmoModel.from_pretrained(tmp_path / "model").dtype == torch.float32


def test_half_precision_comes_back_as_float32(tmp_path: Path) -> None:
    convert_checkpoint(write_bilm(tmp_path, make_bilm()), tmp_path / "model", dtype="float16")
    convert_checkpoint(tmp_path / "model", tmp_path / "back.hdf5", to="bilm-hdf5")
    expected = make_bilm().variables["char_embed"].astype(np.float16)
    np.testing.assert_array_equal(read_variables(tmp_path / "back.hdf5")["char_embed"], expected)


@pytest.mark.parametrize("dtype", ["<f2", "<f8", ">f4"])
def test_other_float_types_are_read(dtype: str, tmp_path: Path) -> None:
    path = write_bilm(tmp_path, make_bilm())
    with h5py.File(path, "a") as file:
        array = file["char_embed"][...]
        del file["char_embed"]
        file["char_embed"] = array.astype(dtype)
    convert_checkpoint(path, tmp_path / "model")
    got = run_model(tmp_path / "model", ["bank"])
    np.testing.assert_allclose(got, evaluate(make_bilm(), ["bank"]), atol=1e-2, rtol=0)


def test_compressed_variables_are_read(tmp_path: Path) -> None:
    path = write_bilm(tmp_path, make_bilm())
    with h5py.File(path, "a") as file:
        array = file["char_embed"][...]
        del file["char_embed"]
        file.create_dataset("char_embed", data=array, compression="gzip")
    convert_checkpoint(path, tmp_path / "model")
    got = run_model(tmp_path / "model", ["bank"])
    np.testing.assert_allclose(got, evaluate(make_bilm(), ["bank"]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["x_options.json", "options.json"])
def test_options_are_found_by_both_customary_names(name: str, tmp_path: Path) -> None:
    path = write_bilm(tmp_path, make_bilm()).rename(tmp_path / "x_weights.hdf5")
    (tmp_path / "options.json").rename(tmp_path / name)
    conversion = convert_checkpoint(path, tmp_path / "model")
    assert [file.name for file in conversion.files] == ["x_weights.hdf5", name]


def test_options_are_taken_from_where_the_user_says(tmp_path: Path) -> None:
    path = write_bilm(tmp_path, make_bilm())
    elsewhere = (tmp_path / "options.json").rename(tmp_path / "elsewhere.json")
    convert_checkpoint(path, tmp_path / "model", options=elsewhere)
    assert (tmp_path / "model" / "config.json").is_file()


# --- Softmax, token embeddings ---


@pytest.fixture
def softmax(tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A softmax over six words, in softmax.hdf5 and vocab.txt."""
    random = np.random.default_rng(1)
    weight = random.normal(size=(6, 4)).astype(np.float32)
    bias = random.normal(size=6).astype(np.float32)
    with h5py.File(tmp_path / "softmax.hdf5", "w") as file:
        file["softmax/W"], file["softmax/b"] = weight, bias
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    return weight, bias


def test_softmax_and_vocabulary_make_a_language_model(
    softmax: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    bilm, words = make_bilm(**CLIPS), ["the", "bank"]
    path = write_bilm(tmp_path, bilm)
    convert_checkpoint(path, tmp_path / "model", softmax=tmp_path / "softmax.hdf5")

    model = ElmoForPreTraining.from_pretrained(tmp_path / "model").eval()
    tokenizer = ElmoTokenizer.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        inputs = tokenizer([words], is_split_into_words=True, return_tensors="pt")
        logits = model(**inputs).forward_logits[0].numpy()
    weight, bias = softmax
    expected = evaluate(bilm, words)[-1, :, :4] @ weight.T + bias
    np.testing.assert_allclose(logits[1:], expected, atol=1e-4, rtol=0)
    lines = (tmp_path / "model" / "target_vocab.txt").read_text(encoding="utf-8").splitlines()
    assert lines == WORDS


def test_softmax_in_the_weights_file_is_used(
    softmax: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    path = write_bilm(tmp_path, make_bilm())
    with h5py.File(path, "a") as file:
        file["softmax/W"], file["softmax/b"] = softmax
    convert_checkpoint(path, tmp_path / "model")
    assert ElmoForPreTraining.from_pretrained(tmp_path / "model").config.vocab_size == 6


def test_softmax_in_the_weights_file_is_left_out_without_a_vocabulary(tmp_path: Path) -> None:
    path = write_bilm(tmp_path, make_bilm())
    with h5py.File(path, "a") as file:
        file["softmax/W"], file["softmax/b"] = np.ones((6, 4), "f"), np.ones(6, "f")
    conversion = convert_checkpoint(path, tmp_path / "model")
    assert len(conversion.left_out) == 2
    assert "softmax/W: needs --vocabulary" in conversion.left_out[0]


def test_a_vocabulary_without_a_softmax_is_named(tmp_path: Path) -> None:
    path = write_bilm(tmp_path, make_bilm())
    (tmp_path / "words.txt").write_text("<S>\n</S>\n<UNK>\n")
    conversion = convert_checkpoint(path, tmp_path / "model", vocabulary=tmp_path / "words.txt")
    assert conversion.left_out == ("words.txt: there is no softmax over its words",)


def test_softmax_comes_back_in_a_file_of_its_own(
    softmax: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    path = write_bilm(tmp_path, make_bilm())
    convert_checkpoint(path, tmp_path / "model", softmax=tmp_path / "softmax.hdf5")
    convert_checkpoint(tmp_path / "model", tmp_path / "x_weights.hdf5", to="bilm-hdf5")
    variables = read_variables(tmp_path / "x_softmax_weights.hdf5")
    np.testing.assert_array_equal(variables["softmax/W"], softmax[0])
    np.testing.assert_array_equal(variables["softmax/b"], softmax[1])
    assert (tmp_path / "x_vocab.txt").read_text(encoding="utf-8").split() == WORDS


def test_a_softmax_beside_the_weights_is_read(
    softmax: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    path = write_bilm(tmp_path, make_bilm())
    convert_checkpoint(path, tmp_path / "model", softmax=tmp_path / "softmax.hdf5")
    (tmp_path / "back").mkdir()
    target = tmp_path / "back" / "weights.hdf5"
    convert_checkpoint(tmp_path / "model", target, to="bilm-hdf5")
    for number, source in enumerate((target, target.parent)):
        convert_checkpoint(source, tmp_path / f"again{number}")
        again = load_file(tmp_path / f"again{number}" / "model.safetensors")
        for name, tensor in load_file(tmp_path / "model" / "model.safetensors").items():
            assert torch.equal(again[name], tensor), name


def test_a_softmax_beside_the_weights_is_read_with_another_vocabulary_or_reported(
    softmax: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    path = write_bilm(tmp_path, make_bilm()).rename(tmp_path / "x_weights.hdf5")
    (tmp_path / "softmax.hdf5").rename(tmp_path / "x_softmax_weights.hdf5")
    vocabulary = (tmp_path / "vocab.txt").rename(tmp_path / "words.txt")
    conversion = convert_checkpoint(path, tmp_path / "without")
    assert conversion.left_out == ("x_softmax_weights.hdf5: needs --vocabulary",)
    convert_checkpoint(path, tmp_path / "model", vocabulary=vocabulary)
    assert ElmoForPreTraining.from_pretrained(tmp_path / "model").config.vocab_size == 6


def test_several_mixes_are_omitted_with_a_warning(tmp_path: Path) -> None:
    convert_checkpoint(write_bilm(tmp_path / "source", make_bilm()), tmp_path / "model")
    mix = {"weights": [0.0, 0.0, 0.0], "gamma": 1.0, "layer_norm": False}
    (tmp_path / "model/scalar_mixes.json").write_text(json.dumps({"a": mix, "b": mix}))
    with pytest.warns(match="cannot store a mix of layers: the mix is omitted"):
        convert_checkpoint(tmp_path / "model", tmp_path / "back.hdf5", to="bilm-hdf5")


@pytest.mark.parametrize("word", [" x", "x\N{NO-BREAK SPACE}", "a\rb", "!!!MAXTERMID"])
def test_words_that_cannot_be_read_back_are_refused(word: str, tmp_path: Path) -> None:
    source = write_bilm(tmp_path / "source", make_bilm(reads_words=True))
    convert_checkpoint(source, tmp_path / "model")
    path = tmp_path / "model" / "word_vocab.json"
    vocabulary = json.loads(path.read_text("utf-8"))
    words = vocabulary if isinstance(vocabulary, list) else list(vocabulary)
    path.write_text(path.read_text("utf-8").replace(json.dumps(words[-1]), json.dumps(word)))
    with pytest.raises(ConversionError, match="without surrounding whitespace or line breaks"):
        convert_checkpoint(tmp_path / "model", tmp_path / "back.hdf5", to="bilm-hdf5")


def test_a_word_table_with_other_marks_is_refused(tmp_path: Path) -> None:
    source = write_bilm(tmp_path / "source", make_bilm(reads_words=True))
    convert_checkpoint(source, tmp_path / "model")
    config = ElmoConfig.from_pretrained(tmp_path / "model")
    config.sentence_start_word_id, config.sentence_end_word_id = (
        config.sentence_end_word_id,
        config.sentence_start_word_id,
    )
    config.save_pretrained(tmp_path / "model")
    with pytest.raises(ConversionError, match=r"Expected <S>, </S>, <UNK> among the words"):
        convert_checkpoint(tmp_path / "model", tmp_path / "back.hdf5", to="bilm-hdf5")


def test_a_vocabulary_that_does_not_exist_is_named(tmp_path: Path) -> None:
    path = write_bilm(tmp_path / "source", make_bilm())
    os.mkfifo(tmp_path / "pipe")  # it can be read only once
    for name in ("no", "pipe"):
        message = rf"--vocabulary: expected a file, found none at .*{name}"
        with pytest.raises(ConversionError, match=message):
            convert_checkpoint(path, tmp_path / "model", vocabulary=tmp_path / name)


def test_long_tables_are_read_in_blocks(
    softmax: tuple[np.ndarray, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "BLOCK_SIZE", 8)  # two rows of the softmax, four characters
    path = write_bilm(tmp_path, make_bilm(**CLIPS))
    convert_checkpoint(path, tmp_path / "model", softmax=tmp_path / "softmax.hdf5")
    got = run_model(tmp_path / "model", ["the", "bank"])
    expected = evaluate(make_bilm(**CLIPS), ["the", "bank"])
    np.testing.assert_allclose(got, expected, atol=1e-5, rtol=0)
    model = ElmoForPreTraining.from_pretrained(tmp_path / "model")
    np.testing.assert_array_equal(model.softmax.weight.detach(), softmax[0])


def test_token_embeddings_replace_the_characters(tmp_path: Path) -> None:
    spelled, listed = make_bilm(**CLIPS), make_bilm(reads_words=True, **CLIPS)
    path = write_bilm(tmp_path, spelled)
    with h5py.File(tmp_path / "tokens.hdf5", "w") as file:
        file["embedding"] = listed.variables["embedding"]
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")

    convert_checkpoint(
        path,
        tmp_path / "model",
        token_embeddings=tmp_path / "tokens.hdf5",
        vocabulary=tmp_path / "words.txt",
    )

    lstms = {name: array for name, array in spelled.variables.items() if name.startswith("RNN")}
    mixed = Bilm(spelled.options, {**lstms, "embedding": listed.variables["embedding"]}, WORDS)
    got = run_model(tmp_path / "model", ["the", "unheard-of"])
    np.testing.assert_allclose(got, evaluate(mixed, ["the", "unheard-of"]), atol=1e-5, rtol=0)


# --- What is wrong with a file ---


def edit_options(**changes: Any) -> Callable[[Path], None]:
    """Change options by their dotted names (with __ for the dot); None removes one."""

    def edit(folder: Path) -> None:
        options = json.loads((folder / "options.json").read_text())
        for name, value in changes.items():
            *sections, key = name.split("__")
            section = options
            for part in sections:
                section = section[part]
            section[key] = value
            if value is None:
                del section[key]
        (folder / "options.json").write_text(json.dumps(options))

    return edit


def edit_weights(edit: Callable[[h5py.File], None]) -> Callable[[Path], None]:
    def edit_file(folder: Path) -> None:
        with h5py.File(folder / "weights.hdf5", "a") as file:
            edit(file)

    return edit_file


def replace_variable(name: str, **keywords: Any) -> Callable[[Path], None]:
    def edit(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, **keywords)

    return edit_weights(edit)


def put_number(name: str, number: float) -> Callable[[Path], None]:
    def edit(file: h5py.File) -> None:
        file[name][0] = number

    return edit_weights(edit)


def link_variable(link: Any) -> Callable[[Path], None]:
    def edit(file: h5py.File) -> None:
        with h5py.File(Path(file.filename).with_name("other.hdf5"), "w") as other:
            other["CNN_proj/b_proj"] = file["CNN_proj/b_proj"][...]
        del file["CNN_proj/b_proj"]
        file["CNN_proj/b_proj"] = link

    return edit_weights(edit)


def make_virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(shape=(4,), dtype="f4")
    layout[:] = h5py.VirtualSource("other.hdf5", "x", shape=(4,))
    del file["CNN_proj/b_proj"]
    file.create_virtual_dataset("CNN_proj/b_proj", layout)


def nest_groups(file: h5py.File) -> None:
    group = file
    for _ in range(1000):
        group = group.create_group("group")


def link_group_to_itself(file: h5py.File) -> None:
    group = file.create_group("group")
    for number in range(10):
        group[str(number)] = group


def use_a_huge_chunk(file: h5py.File) -> None:
    values = file["CNN/b_cnn_0"][...]
    del file["CNN/b_cnn_0"]
    options = {"chunks": (2**29,), "maxshape": (None,), "compression": "gzip"}
    file.create_dataset("CNN/b_cnn_0", values.shape, "float32", **options)


def make_many_groups(file: h5py.File) -> None:
    for number in range(bilm_hdf5.MAX_VARIABLES + 1):
        file.create_group(str(number))


def write_text(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def truncate(folder: Path) -> None:
    content = (folder / "weights.hdf5").read_bytes()
    (folder / "weights.hdf5").write_bytes(content[: len(content) // 2])


def make_folder(folder: Path) -> None:
    (folder / "weights.hdf5").unlink()
    (folder / "weights.hdf5").mkdir()


PROJECTION = "CNN_proj/b_proj"
CELL = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell"
MISTAKES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no options": (
        lambda folder: (folder / "options.json").unlink(),
        "expected its options in .*options.json, found none. Pass them with --options",
    ),
    "options not JSON": (write_text("options.json", "{'lstm'"), "options.json: expected .* JSON"),
    "options a list": (write_text("options.json", "[1]"), r"expected a JSON object, got \[1\]"),
    "options deep": (write_text("options.json", "[" * 100_000), "options.json: expected .* JSON"),
    "no lstm": (edit_options(lstm=None), '"lstm.projection_dim" to be an integer .* nothing'),
    "lstm a number": (edit_options(lstm=3), 'section of "lstm.projection_dim" to be an object'),
    "dim missing": (edit_options(lstm__dim=None), '"lstm.dim" to be an integer.*got nothing'),
    "dim a text": (edit_options(lstm__dim="6"), '"lstm.dim" to be an integer.*got "6"'),
    "dim true": (edit_options(lstm__dim=True), '"lstm.dim" to be an integer.*got true'),
    "layers 0": (edit_options(lstm__n_layers=0), '"lstm.n_layers" .* at least 1, got 0'),
    "many layers": (edit_options(lstm__n_layers=10**9), "num_hidden_layers from 1 to 1000, got 10"),
    "large dim": (edit_options(lstm__dim=10**9), "cell_size from 1 to 1048576, got 10"),
    "projection above dim": (
        edit_options(lstm__projection_dim=7),
        'at most "lstm.dim", got 7 and 6',
    ),
    "clip negative": (edit_options(lstm__cell_clip=-1), '"lstm.cell_clip" .* above 0.* got -1'),
    "clip infinite": (edit_options(lstm__cell_clip=np.inf), '"lstm.cell_clip" .* got Infinity'),
    "skips a number": (
        edit_options(lstm__use_skip_connections=1),
        '"lstm.use_skip_connections" to be true or false, got 1',
    ),
    "activation unknown": (
        edit_options(char_cnn__activation="gelu"),
        '"char_cnn.activation" to be "relu" or "tanh", got "gelu"',
    ),
    "no filters": (edit_options(char_cnn__filters=[]), '"char_cnn.filters" to be a list .*got '),
    "filters flat": (edit_options(char_cnn__filters=[1, 2]), '"char_cnn.filters" to be a list'),
    "filters wide": (edit_options(char_cnn__filters=[[11, 7]]), "a width from 1 to .* 10"),
    "characters for words": (edit_options(char_cnn=None), 'variable embedding, .* no "char_cnn"'),
    "one direction for two": (edit_options(bidirectional=False), "found weights.hdf5: RNN_1/RNN"),
    "highways for none": (edit_options(char_cnn__n_highway=0), "found weights.hdf5: CNN_high_0"),
    "not HDF5": (
        write_text("weights.hdf5", "hello"),
        "an HDF5 file, got a file that starts .*hello",
    ),
    "empty": (write_text("weights.hdf5", ""), "expected an HDF5 file, got a file that starts"),
    "folder": (make_folder, "unknown format"),
    "truncated": (truncate, "expected a complete HDF5 file, got.*truncated"),
    "variable missing": (
        edit_weights(lambda file: file.pop(PROJECTION)),
        r"expected a variable CNN_proj/b_proj of shape \[4\], found: ",
    ),
    "variable surplus": (
        edit_weights(lambda file: file.create_dataset("CNN/x", data=np.ones(2, "f"))),
        "expected no variables but .* found weights.hdf5: CNN/x",
    ),
    "shape": (
        replace_variable(PROJECTION, data=np.ones(5, "f")),
        r"CNN_proj/b_proj: expected shape \[4\] by the options, got \[5\]",
    ),
    "few characters": (
        replace_variable("char_embed", data=np.ones((200, 2), "f")),
        "char_embed: expected 261 rows .*, got 200",
    ),
    "integers": (
        replace_variable(PROJECTION, data=np.ones(4, "i")),
        "CNN_proj/b_proj: expected floating-point values, got int32",
    ),
    "scalar": (
        replace_variable(PROJECTION, data=np.float32(1)),
        "CNN_proj/b_proj: expected at least one axis",
    ),
    "NaN": (put_number(PROJECTION, np.nan), "b_proj: expected finite values, got NaN"),
    "infinity": (put_number(f"{CELL}/B", -np.inf), "LSTMCell/B: expected finite values"),
    "external link": (
        link_variable(h5py.ExternalLink("other.hdf5", PROJECTION)),
        "values in CNN_proj/b_proj, got a link to another place",
    ),
    "soft link": (
        link_variable(h5py.SoftLink("/CNN/b_cnn_1")),
        "values in CNN_proj/b_proj, got a link to another",
    ),
    "virtual": (
        edit_weights(make_virtual),
        "b_proj: expected the values in this file, got a link",
    ),
    "external storage": (
        replace_variable(PROJECTION, shape=(4,), dtype="f4", external=[("/etc/passwd", 0, 16)]),
        "b_proj: expected the values in this file, got a link",
    ),
    "numbers not there": (
        replace_variable(PROJECTION, shape=(10**12,), dtype="f4"),
        "expected 4000000000000 bytes for shape .*, got 0",
    ),
    "compressed out of proportion": (
        replace_variable(
            PROJECTION, shape=(10**12,), dtype="f4", chunks=(10**6,), compression="gzip"
        ),
        "expected 4000000000000 bytes for shape .*, got 0",
    ),
    "two names": (
        edit_weights(lambda file: file.move("RNN_1/RNN/MultiRNNCell", "rnn/MultiRNNCell")),
        "found two variables for",
    ),
    "groups in groups": (edit_weights(nest_groups), "expected groups nested at most 20 deep"),
    "a group in itself": (edit_weights(link_group_to_itself), "got more than 10000 names"),
    "a huge chunk": (edit_weights(use_a_huge_chunk), "chunks of at most 268435456 bytes, got 2147"),
    "too many names": (edit_weights(make_many_groups), "expected a biLM, got more than 10000"),
}


@pytest.mark.parametrize(("edit", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_in_files_are_named_and_leave_nothing(
    edit: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    write_bilm(tmp_path, make_bilm())
    edit(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConversionError, match=message):
        convert_checkpoint(tmp_path / "weights.hdf5", tmp_path / "model")
    assert sorted(tmp_path.iterdir()) == before


VOCABULARIES = {
    "missing": (None, "expected the vocabulary of its 6 words .* --vocabulary"),
    "short": ("<S>\n</S>\n<UNK>\n", "vocab.txt: expected 6 words, one per row of .*, got 3"),
    "not UTF-8": (
        "<S>\n</S>\n<UNK>\na\nb\n\xff\n",
        "vocab.txt: expected UTF-8 with one word per line",
    ),
    "no <S>": ("a\n</S>\nb\nc\nd\ne\n", "expected <S>, <UNK> in the vocabulary"),
}


@pytest.mark.parametrize(("text", "message"), VOCABULARIES.values(), ids=VOCABULARIES.keys())
def test_mistakes_in_vocabularies_are_named(text: str | None, message: str, tmp_path: Path) -> None:
    path = write_bilm(tmp_path, make_bilm(reads_words=True))
    (tmp_path / "vocab.txt").unlink()
    if text is not None:
        (tmp_path / "vocab.txt").write_text(text, encoding="latin-1")
    with pytest.raises(ConversionError, match=message):
        convert_checkpoint(path, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_lines_that_bilm_tf_skips_are_no_words(tmp_path: Path) -> None:
    bilm = make_bilm(reads_words=True)
    path = write_bilm(tmp_path, bilm)
    text = "\n".join([*WORDS[:3], "!!!MAXTERMID", " the \t", *WORDS[4:]])
    (tmp_path / "vocab.txt").write_text(text, encoding="utf-8-sig")  # a byte order mark, too
    convert_checkpoint(path, tmp_path / "model")
    got = run_model(tmp_path / "model", ["the", "bank"])
    np.testing.assert_allclose(got, evaluate(bilm, ["the", "bank"]), atol=1e-5, rtol=0)


def test_softmax_of_another_model_is_named(
    softmax: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    path = write_bilm(tmp_path, make_bilm(dim=8, projection_dim=5))
    with pytest.raises(ConversionError, match=r"softmax/W: expected shape \[6, 5\].*\[6, 4\]"):
        convert_checkpoint(path, tmp_path / "model", softmax=tmp_path / "softmax.hdf5")


def test_softmax_without_vocabulary_is_named(
    softmax: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    path = write_bilm(tmp_path, make_bilm())
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(ConversionError, match=r"softmax's vocabulary .* --vocabulary"):
        convert_checkpoint(path, tmp_path / "model", softmax=tmp_path / "softmax.hdf5")


def test_a_softmax_of_which_two_rows_are_one_word_is_named(
    softmax: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    path = write_bilm(tmp_path, make_bilm())
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS[:-1], WORDS[-2]]), encoding="utf-8")
    with pytest.raises(ConversionError, match=r"softmax's vocabulary: .* once, got .* again"):
        convert_checkpoint(path, tmp_path / "model", softmax=tmp_path / "softmax.hdf5")


def test_a_name_that_is_not_utf_8_is_converted(tmp_path: Path) -> None:
    path = write_bilm(tmp_path, make_bilm())
    target = tmp_path / os.fsdecode(b"model\xff")
    convert_checkpoint(path, target)
    assert "model\\udcff" in (target / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["softmax", "token_embeddings"])
def test_other_files_in_their_place_are_named(name: str, tmp_path: Path) -> None:
    path = write_bilm(tmp_path, make_bilm())
    others: dict[str, Any] = {name: path}
    with pytest.raises(ConversionError, match=r"expected .* variable.* found .*CNN"):
        convert_checkpoint(path, tmp_path / "model", **others)


# --- The way back ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"word_start_char_id": 200}, "its characters are not bytes"),
        (
            {"use_cell_projection": True, "cell_size": 4},
            "cells of size 4 to 4, which is not smaller",
        ),
        (
            {"char_filters": [[1, 4]], "use_token_projection": True},
            "equal input and output width, 4",
        ),
        (
            {
                "word_embedding_size": 3,
                "word_vocab_size": 7,
                "sentence_start_word_id": 1,
                "sentence_end_word_id": 2,
            },
            "both characters and a word lexicon",
        ),
        (
            {
                "word_embedding_size": 3,
                "word_vocab_size": 7,
                "sentence_start_word_id": 1,
                "sentence_end_word_id": 2,
                "char_embedding_size": 0,
            },
            "a projection after the word lexicon",
        ),
    ],
)
def test_models_that_bilm_tf_lacks_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    values: dict[str, Any] = {
        "char_embedding_size": 2,
        "char_filters": [[1, 3]],
        "projection_size": 4,
        "cell_size": 6,
    }
    ElmoModel(ElmoConfig(**values | changes)).save_pretrained(tmp_path / "model")
    with pytest.raises(ConversionError, match=f"does not support this model: .*{message}"):
        convert_checkpoint(tmp_path / "model", tmp_path / "back.hdf5", to="bilm-hdf5")
    assert not (tmp_path / "back.hdf5").exists()


def test_forget_bias_inside_the_weights_is_taken_out(tmp_path: Path) -> None:
    bilm = make_bilm(**CLIPS)
    convert_checkpoint(write_bilm(tmp_path, bilm), tmp_path / "model")
    model = ElmoModel.from_pretrained(tmp_path / "model")
    model.config.forget_bias = 0.0
    for stack in (model.forward_lstm, model.backward_lstm):
        for layer in stack.layers:
            layer.bias.data[6:12] += 1  # i, f, o, j
    model.save_pretrained(tmp_path / "other")

    convert_checkpoint(tmp_path / "other", tmp_path / "back.hdf5", to="bilm-hdf5")

    name = f"{CELL}/B"
    got = read_variables(tmp_path / "back.hdf5")[name]
    np.testing.assert_allclose(got, bilm.variables[name], atol=1e-6)


@pytest.mark.parametrize(
    ("target", "keywords", "message"),
    [
        ("back", {}, "expected a file name that ends in .hdf5"),
        (
            "back.hdf5",
            {"dtype": "float16"},
            "Expected --dtype float32 for bilm-tf's format, got float16",
        ),
    ],
)
def test_wrong_wishes_for_the_way_back_are_named(
    target: str, keywords: dict[str, Any], message: str, tmp_path: Path
) -> None:
    convert_checkpoint(write_bilm(tmp_path, make_bilm()), tmp_path / "model")
    with pytest.raises(ConversionError, match=message):
        convert_checkpoint(tmp_path / "model", tmp_path / target, to="bilm-hdf5", **keywords)
    assert not (tmp_path / target).exists()


@pytest.mark.parametrize("num_files", [100, pytest.param(5000, marks=pytest.mark.slow)])
def test_broken_bytes_give_numbers_or_the_one_error(num_files: int, tmp_path: Path) -> None:
    path = write_bilm(tmp_path, make_bilm())
    content, random = path.read_bytes(), np.random.default_rng(num_files)
    values = [b"\xff", b"\0", (2**31).to_bytes(8, "little"), (2**62).to_bytes(8, "little")]
    outcomes = []
    for _ in range(num_files):
        broken = bytearray(content)
        for place in random.integers(len(content), size=random.choice([1, 4, 16, 64])):
            value = values[random.integers(len(values))]
            broken[place : place + len(value)] = value
        path.write_bytes(broken)
        try:
            with bilm_hdf5.open_checkpoint(Sources(path)) as opened:
                outcomes.append(sum(tensor.read().size for tensor in opened.tensors.values()))
        except ConversionError:
            outcomes.append(0)
    assert set(outcomes) == {0, max(outcomes)}


def test_two_vocabularies_are_refused_as_the_format_has_one(tmp_path: Path) -> None:
    config = ElmoConfig(
        char_embedding_size=0,
        use_token_projection=False,
        word_vocab_size=6,
        sentence_start_word_id=1,
        sentence_end_word_id=2,
        word_embedding_size=4,
        projection_size=4,
        cell_size=8,
        vocab_size=5,
    )
    ElmoForPreTraining(config).save_pretrained(tmp_path / "model")
    words = ("<S>", "</S>", "<UNK>", "the", "bank")
    ElmoTokenizer.from_config(config, word_vocab=words).save_pretrained(tmp_path / "model")
    write_words(tmp_path / "model" / VOCABULARY_NAME, [*words[:4], "yak"])
    with pytest.raises(
        ConversionError, match="Expected one vocabulary for bilm-tf's format, got two"
    ):
        convert_checkpoint(tmp_path / "model", tmp_path / "back.hdf5", to="bilm-hdf5")
    write_words(tmp_path / "model" / VOCABULARY_NAME, words)
    convert_checkpoint(tmp_path / "model", tmp_path / "back.hdf5", to="bilm-hdf5")


@pytest.mark.parametrize("name", ["w_softmax_weights.hdf5", "w_vocab.txt"])
@pytest.mark.parametrize("is_replaced", [True, False])
def test_files_of_another_model_are_not_left_beside_a_new_one(
    name: str, is_replaced: bool, tmp_path: Path
) -> None:
    convert_checkpoint(write_bilm(tmp_path, make_bilm()), tmp_path / "model")
    if is_replaced:
        convert_checkpoint(tmp_path / "model", tmp_path / "w.hdf5", to="bilm-hdf5")
    (tmp_path / name).write_text("of another model")
    with pytest.raises(ConversionError, match=f"{name}: would be read with the new model"):
        convert_checkpoint(tmp_path / "model", tmp_path / "w.hdf5", to="bilm-hdf5", force=True)
    assert (tmp_path / name).read_text() == "of another model"

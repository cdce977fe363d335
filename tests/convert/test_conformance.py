"""Every variant in every format becomes a model that computes the same, and comes back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from bilm_tf import (
    WORDS,
    Bilm,
    encode_cells,
    evaluate,
    make_bilm,
    run_bilm,
    run_model,
    write_bilm,
)
from old_checkpoints import (
    CHARACTERS,
    LEXICON,
    MAX_CHARACTERS,
    ManyLangs,
    make_many_langs,
    write_allennlp,
    write_many_langs,
    write_nlpl,
)
from safetensors.torch import load_file
from tensorflow_checkpoint import write_trained

from convert import convert_checkpoint
from hf_elmo import ElmoForPreTraining

WORDS_TO_RUN = ["the", "naïve", "bank", "unheard-of", "", "🐍🐍🐍🐍"]
TOLERANCE = {"atol": 1e-5, "rtol": 0.0}
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
WRITERS: dict[str, Callable[[Path, Bilm], Any]] = {
    "bilm-hdf5": write_bilm,
    "tensorflow": write_trained,
    "nlpl": write_nlpl,
    "allennlp": write_allennlp,
}
# AllenNLP's biLM always has two directions, characters, and all projections.
ALLENNLP = ("everything", "one layer", "two highways", "no skip connections", "tanh", "clip of 0")
CASES = [
    (name, variant)
    for name in WRITERS
    for variant in VARIANTS
    if name != "allennlp" or variant in ALLENNLP
]


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_converted_model_computes_what_the_original_does(
    name: str, variant: str, tmp_path: Path
) -> None:
    bilm = make_bilm(**VARIANTS[variant])
    WRITERS[name](tmp_path / "source", bilm)
    conversion = convert_checkpoint(tmp_path / "source", tmp_path / "model")
    assert conversion.format == name
    got = run_model(tmp_path / "model", WORDS_TO_RUN)
    np.testing.assert_allclose(got, evaluate(bilm, WORDS_TO_RUN), **TOLERANCE)
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    for key, tensor in tensors.items():
        if "_embedding.weight" in key:
            assert not tensor[0].any()  # the row for padding


def read_hdf5(path: Path) -> dict[str, np.ndarray]:
    variables = {}

    def read(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            variables[name] = item[...]

    with h5py.File(path) as file:
        file.visititems(read)
    return variables


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_way_back_gives_identical_variables_and_options(variant: str, tmp_path: Path) -> None:
    bilm = make_bilm(**VARIANTS[variant])
    convert_checkpoint(write_bilm(tmp_path, bilm), tmp_path / "model")
    convert_checkpoint(tmp_path / "model", tmp_path / "back.hdf5", to="bilm-hdf5")

    variables = read_hdf5(tmp_path / "back.hdf5")
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


def test_a_forget_bias_that_is_included_comes_back_without(tmp_path: Path) -> None:
    bilm = make_bilm(**CLIPS)
    write_allennlp(tmp_path / "task", bilm)
    convert_checkpoint(tmp_path / "task", tmp_path / "back.hdf5", to="bilm-hdf5")
    for name, array in read_hdf5(tmp_path / "back.hdf5").items():
        np.testing.assert_allclose(array, bilm.variables[name], atol=1e-7, err_msg=name)


def test_a_softmax_comes_along_and_back(tmp_path: Path) -> None:
    write_trained(tmp_path / "saved", make_bilm())
    convert_checkpoint(tmp_path / "saved", tmp_path / "model")
    model = ElmoForPreTraining.from_pretrained(tmp_path / "model")
    assert (tmp_path / "model/target_vocab.txt").read_text(encoding="utf-8").split() == WORDS
    target = tmp_path / "x_weights.hdf5"
    convert_checkpoint(tmp_path / "model", target, to="bilm-hdf5")
    softmax = read_hdf5(tmp_path / "x_softmax_weights.hdf5")
    np.testing.assert_array_equal(softmax["softmax/W"], model.softmax.weight.detach())
    convert_checkpoint(target, tmp_path / "again")
    tensors = [load_file(tmp_path / name / "model.safetensors") for name in ("model", "again")]
    assert tensors[0].keys() == tensors[1].keys()
    assert all((tensors[0][name] == tensors[1][name]).all() for name in tensors[0])


# --- ELMoForManyLangs ---

# Known to both lexicons, to one, to none; cut; empty; special words as text.
SENTENCE = ["ab", "ba", "天天", "zz", "ééééééééé", "", "\u3000", "<bos>", "<eos>", "<pad>"]


def evaluate_many_langs(model: ManyLangs, words: list[str]) -> np.ndarray:
    """Compute the layers in float64, spelling words as frontend.py, `create_one_batch`, does."""
    weights = {name: a.astype(np.float64) for name, a in model.bilm.variables.items()}
    vectors = []
    for word in ["<bos>", *(word[: MAX_CHARACTERS - 2] for word in words), "<eos>"]:
        spelled = [word] if word in ("<bos>", "<eos>") else list(word)
        cells = ["<eow>", *spelled, "<bow>"]  # the wrong way round, as there
        cells += ["<pad>"] * (MAX_CHARACTERS - len(cells))
        rows = [CHARACTERS.index(cell if cell in CHARACTERS else "<oov>") for cell in cells]
        vector = encode_cells(model.bilm, weights, rows)
        if model.words is not None:
            row = LEXICON.index(word if word in LEXICON else "<oov>")
            vector = np.concatenate([model.words[row].astype(np.float64), vector])
        vectors.append(vector @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"])
    return run_bilm(model.bilm, weights, np.stack(vectors))


@pytest.mark.parametrize(
    "variant",
    [{}, {"word_dim": 0}, {"num_layers": 1}, {"activation": "tanh"}, {"num_highways": 0}],
    ids=["characters and words", "characters", "one layer", "tanh", "no highways"],
)
def test_converted_model_computes_what_elmo_for_many_langs_does(
    variant: dict[str, Any], tmp_path: Path
) -> None:
    model = make_many_langs(**variant)
    convert_checkpoint(write_many_langs(tmp_path / "source", model), tmp_path / "model")
    got = run_model(tmp_path / "model", SENTENCE)
    np.testing.assert_allclose(got, evaluate_many_langs(model, SENTENCE), **TOLERANCE)


# --- Beside the project ---


@pytest.mark.parametrize("name", ["train_tiny/ckpt", "one_layer", "noproj", "uni", "word"])
def test_checkpoint_equals_what_bilm_tf_dumped_of_it(
    name: str, shared: Path, tmp_path: Path
) -> None:
    folder = shared / "oracle" / "tf_checkpoints"
    files = {
        "vocabulary": folder / "train_tiny/vocab.txt",
        "options": folder / name / "options.json",
    }
    dump = folder / name.removesuffix("/ckpt") / "weights.hdf5"
    trained = convert_checkpoint(folder / name, tmp_path / "trained", **files)
    dumped = convert_checkpoint(dump, tmp_path / "dumped", **files)
    one, two = (load_file(tmp_path / x / "model.safetensors") for x in ("trained", "dumped"))
    assert set(one) == {f"elmo.{key}" for key in two} | {"softmax.weight", "softmax.bias"}
    assert all((one[f"elmo.{key}"] == tensor).all() for key, tensor in two.items())
    assert trained.config.vocab_size == 2124
    configs = [each.config.to_diff_dict() for each in (trained, dumped)]
    ignored = ("architectures", "vocab_size")
    assert [{k: x[k] for k in x if k not in ignored} for x in configs[:1]] == [
        {k: x[k] for k in x if k not in ignored} for x in configs[1:]
    ]

"""The folder of a model is what save_pretrained writes, and says where it came from."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from convert import ConversionError, convert_checkpoint
from convert.formats.hf_folder import check_checkpoint
from convert.layout import Checkpoint
from hf_elmo import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
    make_model_card,
)
from hf_elmo.language_model.vocabulary import VOCABULARY_NAME, read_words, write_words


def test_folder_holds_model_tokenizer_and_card(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    assert [path.name for path in place.iterdir()] == ["model"]
    names = {path.name for path in (place / "model").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer_config.json", "README.md"}
    config = json.loads((place / "model" / "config.json").read_text())
    assert config["architectures"] == ["ElmoModel"]


def test_folder_is_what_save_pretrained_writes(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    ElmoModel.from_pretrained(place / "model").save_pretrained(place / "saved")
    texts = [(place / folder / "config.json").read_text() for folder in ("model", "saved")]
    assert texts[0] == texts[1]
    tensors = [load_file(place / folder / "model.safetensors") for folder in ("model", "saved")]
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])


def test_folder_has_the_permissions_that_the_user_gives_new_files(
    weights: Path, place: Path
) -> None:
    convert_checkpoint(weights, place / "model")
    (place / "made").mkdir()
    assert (place / "model").stat().st_mode == (place / "made").stat().st_mode


def test_card_names_source_and_hash_and_assumes_no_licence(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    card = (place / "model" / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in card
    assert "weights.hdf5" in card
    assert "license:" not in card
    assert "Not stated: ask who trained the weights" in card


def test_card_has_the_licence_that_is_given(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model", weights_license="cc-by-nc-4.0")
    card = (place / "model" / "README.md").read_text(encoding="utf-8")
    assert "license: cc-by-nc-4.0" in card


def test_folder_converts_to_folder_of_another_type(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    convert_checkpoint(place / "model", place / "half", dtype="bfloat16")
    size = [(place / name / "model.safetensors").stat().st_size for name in ("model", "half")]
    assert size[1] < 0.7 * size[0]


def test_target_words_of_white_space_come_back(place: Path) -> None:
    words = ["<S>", "</S>", "<UNK>", "\u00a0", "a\u2028b"]
    write_language_model(place / "model", words)
    convert_checkpoint(place / "model", place / "copy")
    assert read_words(place / "copy" / VOCABULARY_NAME) == words


def write_language_model(folder: Path, words: list[str]) -> None:
    sizes = {"projection_size": 4, "cell_size": 4, "char_filters": [[1, 4]]}
    ElmoForPreTraining(ElmoConfig(**sizes, vocab_size=len(words))).save_pretrained(folder)
    ElmoTokenizer().save_pretrained(folder)
    write_words(folder / VOCABULARY_NAME, words)


def test_the_rows_of_sentence_boundaries_are_those_of_the_target_words(place: Path) -> None:
    write_language_model(place / "model", ["<UNK>", "a", "</S>", "<S>"])
    convert_checkpoint(place / "model", place / "copy")
    config = ElmoConfig.from_pretrained(place / "copy")
    assert (config.sentence_start_target_id, config.sentence_end_target_id) == (3, 2)


def test_a_last_target_word_that_would_not_be_read_is_refused(tmp_path: Path) -> None:
    config = ElmoConfig(vocab_size=4)
    words = ("<S>", "</S>", "<UNK>", "")
    with pytest.raises(ConversionError, match="Expected a word in its last line"):
        check_checkpoint(Checkpoint(config, {}, (), target_words=words), tmp_path, "float32")


def test_the_tokenizers_settings_are_kept(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    settings = {"padding_side": "left", "truncation_side": "left", "model_max_length": 77}
    tokenizer = ElmoTokenizer.from_pretrained(place / "model", pad_token="[P]", **settings)
    tokenizer.save_pretrained(place / "model")
    convert_checkpoint(place / "model", place / "copy")
    copied = ElmoTokenizer.from_pretrained(place / "copy")
    assert {name: getattr(copied, name) for name in settings} == settings
    assert copied.pad_token == "[P]"


def test_folder_of_a_head_converts_without_it(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    tensors = ElmoModel.from_pretrained(place / "model").state_dict()
    named = {f"elmo.{name}": tensor for name, tensor in tensors.items()}
    save_file({**named, "classifier.weight": torch.ones(2, 8)}, place / "model/model.safetensors")
    result = convert_checkpoint(place / "model", place / "back.hdf5", to="bilm-hdf5")
    card = "README.md: licence, language and origin"
    assert result.left_out == ("model.safetensors: classifier.weight", card)
    with h5py.File(weights) as old, h5py.File(place / "back.hdf5") as new:
        np.testing.assert_array_equal(new["char_embed"], old["char_embed"])


@pytest.mark.parametrize(
    ("to", "norm"), [("huggingface", "none"), ("huggingface", "sentence"), ("allennlp", "none")]
)
def test_the_mix_that_a_head_has_learned_is_kept(place: Path, to: str, norm: str) -> None:
    sizes = {"projection_size": 4, "cell_size": 6, "char_filters": [[1, 3]]}
    config = ElmoConfig(**sizes, mix_layer_norm=norm)
    head = ElmoForTokenClassification(config)
    (mix,) = head.features.scalar_mixes
    with torch.no_grad():
        mix.weights.copy_(torch.arange(len(mix.weights)))
        mix.gamma.fill_(0.5)
    head.save_pretrained(place / "head")
    result = convert_checkpoint(place / "head", place / "copy.th", to=to)
    assert {line.split(".")[-2] for line in result.left_out} == {"safetensors: classifier"}
    if to == "allennlp":
        convert_checkpoint(place / "copy.th", place / "again")
    config = ElmoConfig.from_pretrained(place / ("again" if to == "allennlp" else "copy.th"))
    assert (config.mix_weights, config.mix_gamma) == (mix.weights.tolist(), 0.5)
    assert config.mix_layer_norm == norm


def test_the_learned_mix_of_a_head_comes_before_an_older_one_beside_it(
    weights: Path, place: Path
) -> None:
    convert_checkpoint(weights, place / "head")
    mixes = {"old": {"weights": [0.0, 3.0, 0.0], "gamma": 1.0, "layer_norm": False}}
    (place / "head" / "scalar_mixes.json").write_text(json.dumps(mixes))
    head = ElmoForTokenClassification.from_pretrained(place / "head", num_labels=3)
    with torch.no_grad():
        head.features.scalar_mixes[0].weights.copy_(torch.tensor([5.0, 0.0, 0.0]))
    head.save_pretrained(place / "head")
    result = convert_checkpoint(place / "head", place / "copy")
    assert result.config.mix_weights == [5.0, 0.0, 0.0]
    assert "scalar_mixes.json: older than the mixes in model.safetensors" in result.left_out
    assert "README.md: licence, language and origin" in result.left_out


@pytest.mark.parametrize("setting", [{"mix_gamma": 2.0}, {"mix_layer_norm": "sentence"}])
def test_a_mix_that_the_target_cannot_hold_is_named(
    setting: dict[str, Any], weights: Path, place: Path
) -> None:
    convert_checkpoint(weights, place / "model")
    ElmoConfig.from_pretrained(place / "model", **setting).save_pretrained(place / "model")
    with pytest.warns(UserWarning, match="the mix is omitted"):
        convert_checkpoint(place / "model", place / "back.hdf5", to="bilm-hdf5")


def edit_config(folder: Path, name: str = "config.json", **changes: Any) -> None:
    config = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(config | changes))


def split_weights(folder: Path) -> None:
    model = ElmoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="2KB")


BROKEN_FOLDERS = {
    "weights in several files": (
        split_weights,
        r"model: expected the weights in one file, model.safetensors, found several. Load the",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "expected model.safe"),
    "weights cut": (
        lambda folder: os.truncate(folder / "model.safetensors", 1000),
        "model.safetensors: expected safetensors, got",
    ),
    "config wrong": (
        lambda folder: (folder / "config.json").write_text(
            json.dumps({"model_type": "elmo", "cell_size": "x"})
        ),
        "expected an ElmoConfig, got: .*cell_size",
    ),
    "config of another shape": (
        lambda folder: edit_config(folder, id2label=3),
        "model: expected an ElmoConfig, got: .*"
        "(expected a dict, got int|'int' object has no attribute 'items')",
    ),
    "layers without end": (
        lambda folder: edit_config(folder, num_hidden_layers=10**9),
        "model: expected an ElmoConfig, got: .*num_hidden_layers from 1 to 1000, got 10",
    ),
    "sizes without end": (
        lambda folder: edit_config(folder, projection_size=10**12, hidden_size=2 * 10**12),
        "model: expected an ElmoConfig, got: .*projection_size from 1 to 1048576, got 10",
    ),
    "whole numbers": (
        lambda folder: save_file(
            {name: w.long() for name, w in load_file(folder / "model.safetensors").items()},
            folder / "model.safetensors",
        ),
        "expected floating-point numbers, got I64",
    ),
    "tokenizer of another": (
        lambda folder: (folder / "tokenizer_config.json").write_text("{}"),
        "model: expected an ElmoTokenizer, got: Expected a tokenizer_config.json",
    ),
    "tokenizer of brackets": (
        lambda folder: (folder / "tokenizer_config.json").write_text("[" * 100_000),
        "model: expected an ElmoTokenizer, got: .*maximum recursion depth exceeded",
    ),
    "mix without end": (
        lambda folder: (folder / "scalar_mixes.json").write_text(
            json.dumps({"0": {"weights": [10**400], "gamma": 1, "layer_norm": "none"}})
        ),
        r"scalar_mixes.json: expected scalar mixes by name, got: OverflowError\('int too large",
    ),
    "config of another": (
        lambda folder: edit_config(folder, cell_size=7),
        r"expected a tensor forward_lstm.layers.0.input_weight of shape \(28, 4\), found \(24, 4\)",
    ),
}


@pytest.mark.parametrize(("edit", "message"), BROKEN_FOLDERS.values(), ids=BROKEN_FOLDERS.keys())
def test_broken_folders_are_named(edit: Any, message: str, weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    edit(place / "model")
    with pytest.raises(ConversionError, match=message):
        convert_checkpoint(place / "model", place / "back.hdf5", to="bilm-hdf5")
    assert [path.name for path in place.iterdir()] == ["model"]


def test_a_configuration_of_nothing_but_brackets_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text("[" * 100_000)
    with pytest.raises(ConversionError, match="unknown format"):
        convert_checkpoint(tmp_path / "source", tmp_path / "target")


def test_a_model_with_an_adapter_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    (tiny_folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ConversionError, match="expected a model without an adapter"):
        convert_checkpoint(tiny_folder, tmp_path / "x.hdf5", to="bilm-hdf5")


def test_a_model_over_pieces_is_refused(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    (place / "model" / "pieces.json").write_text("{}")
    with pytest.raises(ConversionError, match=r"over pieces .* does not support. Use"):
        convert_checkpoint(place / "model", place / "other")


def test_a_model_saved_without_its_softmax_predicts_no_words(
    tiny_config: ElmoConfig, place: Path
) -> None:
    tiny_config.vocab_size = 20
    ElmoModel(tiny_config).save_pretrained(place / "one")
    (place / "one" / "target_vocab.txt").write_text("<S>\n")  # of no use without a softmax
    assert convert_checkpoint(place / "one", place / "two").config.vocab_size == 0
    for folder in ("one", "two"):
        assert "softmax" not in make_model_card(ElmoConfig.from_pretrained(place / folder))

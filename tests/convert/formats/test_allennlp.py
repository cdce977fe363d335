"""AllenNLP's archives become models that compute the same, and come back unchanged."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bilm_tf import Bilm, evaluate, make_bilm, run_model, write_bilm
from old_checkpoints import allennlp_weights, mix_weights, write_allennlp

from convert import ConversionError, convert_checkpoint
from convert.formats.allennlp import open_checkpoint
from convert.layout import Sources
from hf_elmo import ElmoConfig, ElmoModel

SENTENCE = ["the", "naïve", "bank", "unheard-of", ""]
# AllenNLP's own demands, as `convert` does not make them: variants that it could not load too.
VARIANTS: dict[str, dict[str, Any]] = {
    "everything": {"cell_clip": 0.4, "proj_clip": 0.3, "num_highways": 2},
    "one layer": {"num_layers": 1, "cell_clip": 0.4, "proj_clip": 0.3},
    "no skip connections, no clips": {"skips": False},
    "tanh": {"activation": "tanh", "cell_clip": 0.4, "proj_clip": 0.3},
}


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def bilm(request: pytest.FixtureRequest) -> Bilm:
    return make_bilm(**request.param)


def test_converted_model_computes_what_bilm_tf_does(bilm: Bilm, tmp_path: Path) -> None:
    convert_checkpoint(write_allennlp(tmp_path / "task", bilm), tmp_path / "model")
    got = run_model(tmp_path / "model", SENTENCE)
    np.testing.assert_allclose(got, evaluate(bilm, SENTENCE), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "elmo.pkl", "elmo"])
def test_weights_with_another_suffix_are_recognised_by_their_content(
    name: str, tmp_path: Path
) -> None:
    task = write_allennlp(tmp_path / "task", bilm := make_bilm())
    weights = (task / "weights.th").rename(tmp_path / name)
    convert_checkpoint(weights, tmp_path / "model", options=task / "options.json")
    got = run_model(tmp_path / "model", SENTENCE)
    np.testing.assert_allclose(got, evaluate(bilm, SENTENCE), atol=1e-5, rtol=0)


def test_what_is_the_tasks_own_is_left_out(tmp_path: Path) -> None:
    task = write_allennlp(tmp_path / "task", make_bilm(), mix_weights(0, [1, 2, 3], 4))
    conversion = convert_checkpoint(task, tmp_path / "model")
    assert conversion.left_out == ("weights.th: 1 tensors of the task's own layers",)
    card = (tmp_path / "model/README.md").read_text(encoding="utf-8")
    assert "Omitted: `weights.th: 1 tensors of the task" in card
    assert "the learned scalar mixes: `crf_tagger.scalar_mix_0`." in card


@pytest.mark.parametrize("layer_norm", [True, False])
def test_mix_of_a_task_becomes_the_configured_one(layer_norm: bool, tmp_path: Path) -> None:
    mix = mix_weights(0, [0.5, -1, 2], 1.5)
    task = write_allennlp(tmp_path / "task", make_bilm(), mix, do_layer_norm=layer_norm)
    differs = pytest.warns(match="also counts <S> and </S>") if layer_norm else nullcontext()
    with differs:
        convert_checkpoint(task, tmp_path / "model")
    config = ElmoModel.from_pretrained(tmp_path / "model").config
    assert (config.mix_weights, config.mix_gamma) == ([0.5, -1, 2], 1.5)
    assert config.mix_layer_norm == ("batch" if layer_norm else "none")


def test_a_mix_of_the_top_layer_alone_is_written_and_read(tmp_path: Path) -> None:
    convert_checkpoint(write_allennlp(tmp_path / "task", whole_bilm()), tmp_path / "model")
    config = ElmoConfig.from_pretrained(tmp_path / "model", mix_layers="top")
    config.save_pretrained(tmp_path / "model")
    convert_checkpoint(tmp_path / "model", tmp_path / "top.th", to="allennlp")
    convert_checkpoint(tmp_path / "top.th", tmp_path / "again")
    weights = ElmoConfig.from_pretrained(tmp_path / "again").initial_mix_weights
    assert torch.tensor(weights).softmax(dim=0).tolist() == [0, 0, 1]


def test_a_layer_norm_is_omitted_with_a_warning(tmp_path: Path) -> None:
    convert_checkpoint(write_allennlp(tmp_path / "task", whole_bilm()), tmp_path / "model")
    config = ElmoConfig.from_pretrained(tmp_path / "model", mix_layer_norm="sentence")
    config.save_pretrained(tmp_path / "model")
    with pytest.warns(match="Construct its Elmo with do_layer_norm=True"):
        convert_checkpoint(tmp_path / "model", tmp_path / "back.th", to="allennlp")


def test_a_single_mix_is_that_of_the_configuration(tmp_path: Path) -> None:
    task = write_allennlp(tmp_path / "task", whole_bilm(), mix_weights(0, [1, 2, 3], 1.5))
    convert_checkpoint(task, tmp_path / "model")
    config = ElmoConfig.from_pretrained(
        tmp_path / "model", mix_weights=[0.0, 0.0, 5.0], mix_gamma=7.0
    )
    config.save_pretrained(tmp_path / "model")
    convert_checkpoint(tmp_path / "model", tmp_path / "back.th", to="allennlp")
    weights = torch.load(tmp_path / "back.th", weights_only=True)
    assert weights["scalar_mix_0.gamma"] == 7
    assert [weights[f"scalar_mix_0.scalar_parameters.{k}"].item() for k in range(3)] == [0, 0, 5]


def test_a_mix_of_whole_numbers_comes_back(tmp_path: Path) -> None:
    task = write_allennlp(tmp_path / "task", whole_bilm())
    convert_checkpoint(task, tmp_path / "model")
    ElmoConfig.from_pretrained(
        tmp_path / "model", mix_weights=[0, 1, 0], mix_gamma=2
    ).save_pretrained(tmp_path / "model")
    convert_checkpoint(tmp_path / "model", tmp_path / "back.th", to="allennlp")
    convert_checkpoint(tmp_path / "back.th", tmp_path / "again")
    config = ElmoConfig.from_pretrained(tmp_path / "again")
    assert (config.mix_weights, config.mix_gamma) == ([0.0, 1.0, 0.0], 2.0)


def test_several_mixes_are_named_by_their_task(tmp_path: Path) -> None:
    mixes = mix_weights(0, [1, 2, 3], 4) | mix_weights(1, [5, 6, 7], 8)
    convert_checkpoint(write_allennlp(tmp_path / "task", make_bilm(), mixes), tmp_path / "model")
    assert json.loads((tmp_path / "model/scalar_mixes.json").read_text()) == {
        "crf_tagger.scalar_mix_0": {"weights": [1, 2, 3], "gamma": 4, "layer_norm": False},
        "crf_tagger.scalar_mix_1": {"weights": [5, 6, 7], "gamma": 8, "layer_norm": False},
    }
    assert ElmoModel.from_pretrained(tmp_path / "model").config.mix_weights is None


def test_a_configured_mix_beside_several_others_is_omitted_with_a_warning(tmp_path: Path) -> None:
    mixes = mix_weights(0, [1, 2, 3], 4) | mix_weights(1, [5, 6, 7], 8)
    convert_checkpoint(write_allennlp(tmp_path / "task", whole_bilm(), mixes), tmp_path / "model")
    convert_checkpoint(tmp_path / "model", tmp_path / "first.th", to="allennlp")
    config = ElmoConfig.from_pretrained(tmp_path / "model", mix_gamma=7.0)
    config.save_pretrained(tmp_path / "model")
    with pytest.warns(match="The mix in the configuration is omitted: 2 others are written"):
        convert_checkpoint(tmp_path / "model", tmp_path / "second.th", to="allennlp")


@pytest.mark.parametrize("scope", ["", "_elmo_lstm.", "_elmo._elmo_lstm."])
def test_weights_of_elmo_alone_are_read(scope: str, tmp_path: Path) -> None:
    bilm = make_bilm(cell_clip=0.4, proj_clip=0.3)
    path = tmp_path / "elmo.th"
    torch.save({scope + name: value for name, value in allennlp_weights(bilm).items()}, path)
    (tmp_path / "elmo_options.json").write_text(json.dumps(bilm.options))
    convert_checkpoint(path, tmp_path / "model")
    got = run_model(tmp_path / "model", SENTENCE)
    np.testing.assert_allclose(got, evaluate(bilm, SENTENCE), atol=1e-5, rtol=0)


def test_options_are_found_where_allennlp_archives_them(tmp_path: Path) -> None:
    bilm = make_bilm(activation="tanh")
    task = write_allennlp(tmp_path / "task", bilm)
    (task / "fta").mkdir()
    archived = task / "fta/model.text_field_embedder.token_embedders.elmo.options_file"
    (task / "options.json").rename(archived)
    assert convert_checkpoint(task, tmp_path / "model").config.char_activation == "tanh"


def test_options_that_are_nowhere_are_guessed(tmp_path: Path) -> None:
    bilm = make_bilm(cell_clip=3, proj_clip=3, max_characters=50)
    task = write_allennlp(tmp_path / "task", bilm)
    (task / "options.json").unlink()
    with pytest.warns(UserWarning, match="relu, clips of 3, skip connections and 50"):
        convert_checkpoint(task, tmp_path / "model")
    got = run_model(tmp_path / "model", SENTENCE)
    np.testing.assert_allclose(got, evaluate(bilm, SENTENCE), atol=1e-5, rtol=0)


def test_options_of_published_models_need_no_guess(tmp_path: Path) -> None:
    url = "https://host/elmo_2x4096_512_2048cnn_2xhighway_options.json"
    task = write_allennlp(tmp_path / "task", make_bilm(), options_file=url)
    (task / "options.json").unlink()
    convert_checkpoint(task, tmp_path / "model")  # a warning would fail the test


# --- The way back ---


def whole_bilm() -> Bilm:
    return make_bilm(cell_clip=3, proj_clip=3, max_characters=50)


def test_the_way_back_gives_identical_tensors(tmp_path: Path) -> None:
    mixes = mix_weights(0, [0.1, 0.2, 0.3], 0.4) | mix_weights(1, [1, 2, 3], 4)
    convert_checkpoint(write_allennlp(tmp_path / "task", whole_bilm(), mixes), tmp_path / "model")
    convert_checkpoint(tmp_path / "model", tmp_path / "back.th", to="allennlp")

    back = torch.load(tmp_path / "back.th", weights_only=True)
    expected = {f"_elmo_lstm.{name}": t for name, t in allennlp_weights(whole_bilm()).items()}
    expected |= mixes
    assert back.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(back[name], tensor, rtol=0, atol=0)
    options = json.loads((tmp_path / "back_options.json").read_text())
    assert options == whole_bilm().options


def test_bilm_tf_models_become_allennlp_weights(tmp_path: Path) -> None:
    convert_checkpoint(write_bilm(tmp_path, whole_bilm()), tmp_path / "elmo.th", to="allennlp")
    weights = torch.load(tmp_path / "elmo.th", weights_only=True)
    for name, tensor in allennlp_weights(whole_bilm()).items():
        torch.testing.assert_close(weights[f"_elmo_lstm.{name}"], tensor, rtol=0, atol=0)
    with open_checkpoint(Sources(tmp_path / "elmo.th")) as checkpoint:
        assert checkpoint.config.mix_weights == [0, 0, 0]


@pytest.mark.parametrize(
    ("variant", "error"),
    [
        ({"reads_words": True}, "Expected: characters, skip connections, a projection of tok"),
        ({"max_characters": 60}, "Expected: 50 characters per word"),
        ({"is_bidirectional": False}, "Expected: both directions"),
        ({"skips": False}, "Expected: skip connections"),
        ({"proj_clip": None}, "Expected: both clips"),
        ({"dim": 4}, "Expected: a projection of cells"),
        ({"filters": ((1, 1), (3, 3))}, "Expected: a projection of token vectors"),
    ],
)
def test_what_allennlp_cannot_be_is_refused(
    variant: dict[str, Any], error: str, tmp_path: Path
) -> None:
    settings = {"cell_clip": 3, "proj_clip": 3, "max_characters": 50} | variant
    if variant.get("reads_words"):
        settings |= {"skips": False}
    path = write_bilm(tmp_path / "source", make_bilm(**settings))
    with pytest.raises(ConversionError, match=error):
        convert_checkpoint(path, tmp_path / "elmo.th", to="allennlp")
    assert not (tmp_path / "elmo.th").exists()


@pytest.mark.parametrize(
    ("target", "dtype", "error"),
    [
        ("elmo.bin", "float32", "expected a file name that ends in .th"),
        ("elmo.th", "float16", "Expected --dtype float32 for AllenNLP's format, got float16"),
    ],
)
def test_other_targets_are_refused(target: str, dtype: str, error: str, tmp_path: Path) -> None:
    path = write_bilm(tmp_path / "source", whole_bilm())
    with pytest.raises(ConversionError, match=error):
        convert_checkpoint(path, tmp_path / target, to="allennlp", dtype=dtype)


# --- What is refused ---


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("_contextualizer._forward_transformer._attention_0.weight", "Transformers or gated CNNs"),
        ("bert_model.encoder.weight", "expected a tensor .*, found: bert_model.encoder.weight"),
    ],
)
def test_other_models_are_refused_with_what_they_are(name: str, error: str, tmp_path: Path) -> None:
    torch.save({name: torch.ones(2)}, tmp_path / "weights.th")
    with pytest.raises(ConversionError, match=error):
        convert_checkpoint(tmp_path, tmp_path / "model")


def test_two_elmos_are_refused(tmp_path: Path) -> None:
    weights = allennlp_weights(make_bilm())
    two = {scope + name: tensor for scope in "ab" for name, tensor in weights.items()}
    torch.save(two, tmp_path / "weights.th")
    with pytest.raises(ConversionError, match=r"expected one ELMo, found several: a, b"):
        convert_checkpoint(tmp_path, tmp_path / "model")


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    task = write_allennlp(tmp_path / "task", make_bilm())
    (task / "options.json").write_text(json.dumps(make_bilm(dim=7).options))
    with pytest.raises(ConversionError, match=r"input_linearity.weight: expected shape \[28, 4\]"):
        convert_checkpoint(task, tmp_path / "model")


def test_a_mix_of_other_layers_is_refused(tmp_path: Path) -> None:
    task = write_allennlp(tmp_path / "task", make_bilm(), mix_weights(0, [1, 2], 3))
    with pytest.raises(ConversionError, match=r"expected weights for 3 layers, got 2"):
        convert_checkpoint(task, tmp_path / "model")


def test_a_full_disk_is_told(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda content, _: save(content, "/dev/full"))
    with pytest.raises(OSError, match=r"Expected to write .*Is the disk full\?"):
        convert_checkpoint(tiny_folder, tmp_path / "x.th", to="allennlp")

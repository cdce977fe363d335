"""Files of a stored model: found by name, checked strictly, refused by name."""

import json
from pathlib import Path

import pytest
import torch
from batches import make_classifier
from safetensors.torch import load_file, save_file
from transformers import (
    PreTrainedModel,
)

from hf_elmo import (
    ElmoConfig,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
)
from hf_elmo.stored_model import (
    check_dtypes,
    check_keys,
    check_name,
    check_weights,
    find_weights,
    load_config,
)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("missing", "misses tensors: forward_lstm.layers.1.bias"),
        ("surplus", "has surplus tensors: forward_lstm.layers.2.bias"),
    ],
)
def test_loading_the_bilm_is_strict(
    tiny_model: ElmoModel, tmp_path: Path, problem: str, message: str
) -> None:
    tiny_model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    bias = tensors["forward_lstm.layers.1.bias"]
    if problem == "missing":
        del tensors["forward_lstm.layers.1.bias"]
    else:
        tensors["forward_lstm.layers.2.bias"] = bias.clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=message):
        ElmoModel.from_pretrained(tmp_path)
    _, report = ElmoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert len(report["missing_keys"]) + len(report["unexpected_keys"]) == 1


def test_a_configuration_can_lie_in_another_folder(tiny_model: ElmoModel, tmp_path: Path) -> None:
    tiny_model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").rename(tmp_path / "config.json")
    for config in (tmp_path, tmp_path / "config.json"):
        loaded = ElmoModel.from_pretrained(tmp_path / "model", config=str(config))
        assert loaded.config.hidden_size == tiny_model.config.hidden_size


def test_the_tokenizer_in_a_subfolder_is_checked_too(tiny_model: ElmoModel, tmp_path: Path) -> None:
    tiny_model.save_pretrained(tmp_path / "part")
    ElmoTokenizer(max_characters_per_token=40).save_pretrained(tmp_path / "part")
    with pytest.raises(ValueError, match=r"Expected max_characters_per_token 50 .* got 40"):
        ElmoModel.from_pretrained(tmp_path, subfolder="part")


def test_weights_in_a_subfolder_are_checked_too(tiny_model: ElmoModel, tmp_path: Path) -> None:
    tiny_model.save_pretrained(tmp_path / "part")
    path = tmp_path / "part" / "model.safetensors"
    whole = {name: weight.long() for name, weight in load_file(path).items()}
    save_file(whole, path, {"format": "pt"})
    with pytest.raises(ValueError, match=r"Expected floating-point weights .* got I64"):
        ElmoModel.from_pretrained(tmp_path, subfolder="part")


def test_a_misshapen_tensor_is_named(tiny_model: ElmoModel, tmp_path: Path) -> None:
    tiny_model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["forward_lstm.layers.0.bias"] = tensors["forward_lstm.layers.0.bias"][:-1].clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for options in ({}, {"ignore_mismatched_sizes": True}, {"output_loading_info": True}):
        with pytest.raises(
            RuntimeError, match=r"forward_lstm\.layers\.0\.bias \(63,\) for \(64,\)"
        ):
            ElmoModel.from_pretrained(tmp_path, **options)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5])
def test_a_truncated_file_of_weights_is_refused_by_name(
    share: float, tiny_model: ElmoModel, tmp_path: Path
) -> None:
    tiny_model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(ValueError, match=f"weights of '{tmp_path}' are damaged"):
        ElmoModel.from_pretrained(tmp_path)


def test_a_misshapen_head_is_an_error_unless_allowed(
    tiny_config: ElmoConfig, tmp_path: Path
) -> None:
    make_classifier(ElmoForTokenClassification, tiny_config).save_pretrained(tmp_path)
    with pytest.raises(
        RuntimeError, match=r"misshapen tensors: classifier\.bias \(3,\) for \(7,\)"
    ):
        ElmoForTokenClassification.from_pretrained(tmp_path, num_labels=7)
    model = ElmoForTokenClassification.from_pretrained(
        tmp_path, num_labels=7, ignore_mismatched_sizes=True
    )
    assert model.classifier.bias.shape == (7,)


@pytest.mark.parametrize("name", ["elmo-mini-em", "a/b/c", "/absent", "/absent/elmo"])
def test_a_misspelt_name_is_refused_without_asking_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", None)  # it must not come so far
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=rf"got '{name}': there is no .*\"elmo-mini-en\""):
        ElmoModel.from_pretrained(name)


def test_a_name_on_the_hub_is_left_to_the_hub() -> None:
    check_name("me/my-elmo")


def test_a_folder_whose_name_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="with a name in UTF-8"):
        check_name(f"{tmp_path}/caf\udce9")


def test_an_error_of_the_hub_names_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, **_: object) -> None:
        raise OSError("We couldn't connect")

    monkeypatch.setattr(ElmoConfig, "from_pretrained", fail)
    with pytest.raises(OSError, match="Could not load the model 'me/missing': We couldn't"):
        load_config("me/missing", ElmoConfig)


def test_code_of_an_unknown_model_is_never_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"model_type": "elmo-ner-x", "auto_map": {"AutoConfig": "evil.X"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # transformers would ask
    with pytest.raises(
        ValueError, match=r"Expected a model of this package, got .*code of its own"
    ):
        load_config(str(tmp_path))


def test_a_damaged_configuration_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=f"Expected the files of .* in '{tmp_path}', got"):
        load_config(str(tmp_path))


def test_weights_are_finite_or_leave_a_layer_out_of_a_mix() -> None:
    left_out = torch.tensor([0.0, -torch.inf])
    check_weights({"scalar_mix.weights": left_out, "bias": torch.full((2,), 3e38)})  # infinite sum
    check_weights({"bias": torch.empty(2, device="meta")})
    for weights in ({"bias": left_out}, {"scalar_mix.weights": -left_out}):
        with pytest.raises(ValueError, match="got NaN or infinity in"):
            check_weights(weights)


def test_weights_are_one_file_or_shards_and_pickled_only_without_them(tmp_path: Path) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name in (*names, "pytorch_model.bin", "other.safetensors"):
        (tmp_path / name).touch()
    (tmp_path / "model.old.safetensors").mkdir()
    assert find_weights(str(tmp_path)) == [tmp_path / name for name in names]
    for name in names:
        (tmp_path / name).unlink()
    assert find_weights(str(tmp_path)) == [tmp_path / "pytorch_model.bin"]


@pytest.mark.parametrize("name", ["bias", "elmo.bias"])
def test_integers_are_refused_only_in_weights_of_the_model(name: str, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({name: torch.ones(2, dtype=torch.int64)}, file)
    check_dtypes(file, {"weight"})
    with pytest.raises(ValueError, match=f"got I64 in {name}"):
        check_dtypes(file, {"bias"})


@pytest.mark.parametrize("problem", ["missing_keys", "unexpected_keys"])
@pytest.mark.parametrize("key", ["token_encoder.x", "elmo.forward_lstm.x", "backward_lstm.x"])
def test_only_tensors_of_the_bilm_must_be_complete(problem: str, key: str) -> None:
    report = {"missing_keys": ["classifier.bias"], "unexpected_keys": ["softmax.bias"]}
    check_keys(report, "me/elmo")
    with pytest.raises(ValueError, match=rf"'me/elmo' .* tensors: {key}\. "):
        check_keys(report | {problem: [key, "other"]}, "me/elmo")

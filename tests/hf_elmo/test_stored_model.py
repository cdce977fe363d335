"""Files of a stored model: found by name, checked strictly, refused by name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    PreTrainedModel,
)

from hf_elmo import (
    ElmoModel,
)
from hf_elmo.stored_model import check_name, check_weights


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


def test_a_misshapen_tensor_is_an_error_even_if_heads_may_be_misshapen(
    tiny_model: ElmoModel, tmp_path: Path
) -> None:
    tiny_model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["forward_lstm.layers.1.bias"] = torch.zeros(7)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RuntimeError):
        ElmoModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"misshapen tensors: forward_lstm\.layers\.1\.bias"):
        ElmoModel.from_pretrained(tmp_path, ignore_mismatched_sizes=True)


def test_a_configuration_can_lie_in_another_folder(tiny_model: ElmoModel, tmp_path: Path) -> None:
    tiny_model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").rename(tmp_path / "config.json")
    for config in (tmp_path, tmp_path / "config.json"):
        loaded = ElmoModel.from_pretrained(tmp_path / "model", config=str(config))
        assert loaded.config.hidden_size == tiny_model.config.hidden_size


@pytest.mark.parametrize("name", ["elmo-mini-em", "a/b/c", "/absent", "/absent/elmo"])
def test_a_misspelt_name_is_refused_without_asking_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", None)  # it must not come so far
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=rf"got '{name}': there is no such folder"):
        ElmoModel.from_pretrained(name)


def test_a_name_on_the_hub_is_left_to_the_hub() -> None:
    check_name("me/my-elmo")


def test_weights_are_finite_or_leave_a_layer_out_of_a_mix() -> None:
    left_out = torch.tensor([0.0, -torch.inf])
    check_weights({"scalar_mix.weights": left_out, "bias": torch.full((2,), 3e38)})  # infinite sum
    check_weights({"bias": torch.empty(2, device="meta")})
    for weights in ({"bias": left_out}, {"scalar_mix.weights": -left_out}):
        with pytest.raises(ValueError, match="got NaN or infinity in"):
            check_weights(weights)

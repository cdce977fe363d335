"""Loading: strict, in any precision, with initial values for what is missing."""

from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from batches import HEADS, SENTENCES, TOLERANCE, make_batch, make_classifier
from torch.testing import assert_close
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from hf_elmo import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoPreTrainedModel,
)


def test_saving_and_loading_is_the_identity(tiny_model: ElmoModel, tmp_path: Path) -> None:
    tiny_model.save_pretrained(tmp_path)
    loaded = ElmoModel.from_pretrained(tmp_path)
    for name, value in tiny_model.state_dict().items():
        assert_close(loaded.state_dict()[name], value, rtol=0, atol=0)


def test_initial_values_are_those_of_bilm_tf(tiny_config: ElmoConfig) -> None:
    torch.manual_seed(0)
    encoder = ElmoModel(tiny_config).token_encoder
    characters = encoder.char_embedding.weight
    assert characters.abs().max() <= 1
    assert characters.std() > 0.5  # uniform from -1 to 1, deviation 0.577
    assert characters[0].abs().sum() == 0
    highway = encoder.highways[0]
    assert highway.gate.bias.tolist() == [-2.0] * tiny_config.num_filters
    assert_close(highway.gate.weight.std().item(), tiny_config.num_filters**-0.5, rtol=0.2, atol=0)


def test_loading_draws_initial_values_for_missing_heads_alone(
    tiny_model: ElmoModel, tmp_path: Path
) -> None:
    tiny_model.save_pretrained(tmp_path)
    model = ElmoForPreTraining.from_pretrained(tmp_path, vocab_size=5000)
    assert_close(model.elmo.state_dict(), tiny_model.state_dict(), rtol=0, atol=0)
    assert_close(model.softmax.weight.std().item(), 8**-0.5, rtol=0.02, atol=0)


def test_heads_load_from_each_other_with_their_bilm(
    tiny_config: ElmoConfig, tmp_path: Path
) -> None:
    tagger = make_classifier(ElmoForTokenClassification, tiny_config)
    tagger.save_pretrained(tmp_path)
    model, report = ElmoForSequenceClassification.from_pretrained(
        tmp_path, num_labels=3, output_loading_info=True
    )
    assert_close(model.state_dict(), tagger.state_dict(), rtol=0, atol=0)
    assert not report["missing_keys"]


@pytest.mark.parametrize(
    ("auto", "expected"),
    [
        (AutoModel, ElmoModel),
        (AutoModelForPreTraining, ElmoForPreTraining),
        (AutoModelForTokenClassification, ElmoForTokenClassification),
        (AutoModelForSequenceClassification, ElmoForSequenceClassification),
    ],
)
def test_auto_classes_know_the_models(
    tiny_config: ElmoConfig, tmp_path: Path, auto: type, expected: type[ElmoPreTrainedModel]
) -> None:
    config = ElmoConfig(**{**tiny_config.to_dict(), "vocab_size": 7})
    expected(config).save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is ElmoConfig
    assert type(auto.from_pretrained(tmp_path)) is expected
    assert type(auto.from_config(config)) is expected


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("device_map", ["cpu", "auto", {"": "cpu"}])
def test_device_maps_change_no_output(
    tiny_config: ElmoConfig, tmp_path: Path, head: type[ElmoPreTrainedModel], device_map: object
) -> None:
    model = make_classifier(head, tiny_config, vocab_size=7)
    model.save_pretrained(tmp_path)
    batch = make_batch(tiny_config, SENTENCES)
    loaded = head.from_pretrained(tmp_path, device_map=device_map)
    device = loaded.device
    out = loaded(*(part.to(device) for part in batch))[0]
    assert_close(out.cpu(), model(*batch)[0], **TOLERANCE)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_load_in_half_precision(
    tiny_config: ElmoConfig, tmp_path: Path, head: type[ElmoPreTrainedModel], dtype: torch.dtype
) -> None:
    model = make_classifier(head, tiny_config, vocab_size=7)
    model.save_pretrained(tmp_path / "single")
    loaded = head.from_pretrained(tmp_path / "single", dtype=dtype)
    assert {value.dtype for value in loaded.state_dict().values()} == {dtype}
    batch = make_batch(tiny_config, SENTENCES)
    with torch.no_grad():
        out, expected = loaded(*batch)[0], model(*batch)[0]
    assert out.dtype == dtype
    assert_close(out.float(), expected, rtol=0.05, atol=0.2)  # 2**-8 of 8, a few times over
    loaded.save_pretrained(tmp_path / "half")
    assert head.from_pretrained(tmp_path / "half").dtype == dtype


@pytest.mark.parametrize("head", HEADS)
def test_models_are_built_without_memory_on_the_meta_device(
    tiny_config: ElmoConfig, head: type[ElmoPreTrainedModel]
) -> None:
    with torch.device("meta"):
        model = head(ElmoConfig(**{**tiny_config.to_dict(), "vocab_size": 7}))
    assert {value.device.type for value in model.state_dict().values()} == {"meta"}


def test_an_offloaded_encoder_computes_the_same(tiny_model: ElmoModel) -> None:
    batch = make_batch(tiny_model.config, SENTENCES)
    with torch.no_grad():
        expected = tiny_model(*batch).elmo
        cpu_offload(tiny_model.token_encoder, execution_device="cpu")
        assert tiny_model.token_encoder.projection.weight.is_meta
        assert_close(tiny_model(*batch).elmo, expected, **TOLERANCE)


@pytest.mark.parametrize("head", HEADS)
def test_models_on_a_disk_compute_the_same(
    tiny_config: ElmoConfig, tmp_path: Path, head: type[ElmoPreTrainedModel]
) -> None:
    model = make_classifier(head, tiny_config, vocab_size=7)
    batch = make_batch(tiny_config, SENTENCES)
    expected = model(*batch)[0]
    model.save_pretrained(tmp_path / "model")
    loaded = head.from_pretrained(
        tmp_path / "model", device_map={"": "disk"}, offload_folder=tmp_path / "one"
    )
    disk_offload(model, tmp_path / "two", execution_device="cpu")
    for offloaded in (loaded, model):
        assert all(parameter.is_meta for parameter in offloaded.parameters())
        assert_close(offloaded(*batch)[0], expected, **TOLERANCE)

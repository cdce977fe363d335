"""The exported file computes what PyTorch computes, and nothing of the user's is overwritten."""

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from random_bilms import draw_batch, draw_config, run

from hf_elmo import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
)
from hf_elmo.onnx import export, export_onnx


def run_file(path: Path, inputs: dict[str, torch.Tensor]) -> Any:
    session = onnxruntime.InferenceSession(path)
    return session.run(None, {name: ids.numpy() for name, ids in inputs.items()})


@pytest.mark.parametrize("seed", range(12))
def test_every_configuration_is_exported(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    model = ElmoModel(draw_config(random.Random(seed))).eval()
    export_onnx(model, tmp_path / "model.onnx")
    for batch, tokens in ((3, 7), (1, 1)):
        inputs = draw_batch(model.config, batch, tokens)
        inputs["attention_mask"][:, 0] = 1  # an empty sentence has no rows to compare
        layers, elmo, _, _ = run(model, inputs)
        hidden_states, mixed = run_file(tmp_path / "model.onnx", inputs)
        np.testing.assert_allclose(hidden_states, torch.stack(layers).numpy(), rtol=0, atol=1e-5)
        np.testing.assert_allclose(mixed, elmo.numpy(), rtol=0, atol=1e-5)


def test_the_file_passes_the_checker_and_holds_the_configuration(
    tiny_model: ElmoModel, tmp_path: Path
) -> None:
    export_onnx(tiny_model, tmp_path / "model.onnx", quantization="int8")
    proto = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(proto, full_check=True)
    properties = {entry.key: entry.value for entry in proto.metadata_props}
    assert '"projection_size": 8' in properties["config"]
    assert properties["quantization"] == "int8"


def test_a_file_of_the_users_is_not_overwritten(tiny_model: ElmoModel, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("mine")
    with pytest.raises(FileExistsError):
        export_onnx(tiny_model, tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_text() == "mine"


def test_a_link_is_kept_and_a_device_is_refused(tiny_model: ElmoModel, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link.onnx").symlink_to(tmp_path / "disk/model.onnx")
    export_onnx(tiny_model, tmp_path / "link.onnx")
    assert (tmp_path / "link.onnx").is_symlink()
    assert (tmp_path / "disk/model.onnx").is_file()
    (tmp_path / "null.onnx").symlink_to("/dev/null")
    with pytest.raises(FileExistsError, match="the name of a file or folder, got the device"):
        export_onnx(tiny_model, tmp_path / "null.onnx", overwrite=True)


def test_a_graph_that_computes_something_else_is_not_written(
    tiny_model: ElmoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_is_near", lambda *_: False)
    with pytest.raises(ValueError, match="Nothing was written"):
        export_onnx(tiny_model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_outputs_in_8_bits_may_differ_more_but_not_in_direction() -> None:
    expected, noise = np.random.default_rng(0).normal(size=(2, 100, 16))
    assert export._is_near(expected + 0.05 * noise, expected, "int8")
    assert not export._is_near(expected + 0.05 * noise, expected, None)
    assert not export._is_near(expected + 0.5 * noise, expected, "int8")


def test_what_cannot_be_exported_is_refused(tiny_model: ElmoModel, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    tiny_model.config.vocab_size = 5
    head: Any = ElmoForPreTraining(tiny_model.config)
    with pytest.raises(ValueError, match="to export, got ElmoForPreTraining"):
        export_onnx(head, path)
    with pytest.raises(ValueError, match="Expected an opset from 18 to 23, got 17"):
        export_onnx(tiny_model, path, opset=17)
    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(ValueError, match=r"16\. Call model\.float\(\) first\."):
            export_onnx(copy.deepcopy(tiny_model).to(dtype), path)
    with pytest.raises(ValueError, match="Expected a model that can be exported, got one on meta"):
        export_onnx(tiny_model.to("meta"), path)
    assert not path.exists()


@pytest.mark.parametrize("layer_norm", ["none", "sentence", "batch"])
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_heads_are_exported(
    layer_norm: str, pooling: str, tiny_config: ElmoConfig, tmp_path: Path
) -> None:
    for field, value in (("mix_layer_norm", layer_norm), ("classifier_pooling", pooling)):
        setattr(tiny_config, field, value)
    tiny_config.num_scalar_mixes, tiny_config.num_labels = 2, 3
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]])
    ids = torch.randint(1, 262, (3, 4, tiny_config.max_characters_per_token)) * mask[..., None]
    inputs = {"attention_mask": mask, "input_ids": ids}
    for head in (ElmoForTokenClassification, ElmoForSequenceClassification):
        model = head(tiny_config).eval()
        with torch.no_grad():
            for mix in model.features.scalar_mixes:
                torch.nn.init.normal_(mix.weights)
            expected = model(**inputs).logits
        export_onnx(model, tmp_path / head.__name__)
        (logits,) = run_file(tmp_path / head.__name__, inputs)
        np.testing.assert_allclose(logits, expected.numpy(), rtol=0, atol=1e-5)


def test_large_weights_are_in_a_second_file(
    tiny_model: ElmoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "MAX_BYTES", 1000)
    export_onnx(tiny_model, tmp_path / "model.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.onnx_data"]
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(FileExistsError):
        export_onnx(tiny_model, tmp_path / "model.onnx")


def test_a_batch_without_words_is_computed(tiny_model: ElmoModel, tmp_path: Path) -> None:
    export_onnx(tiny_model, tmp_path / "model.onnx")
    width = tiny_model.config.max_characters_per_token
    for shape in ((1, 0), (0, 3)):
        mask = torch.zeros(shape, dtype=torch.long)
        ids = torch.zeros(*shape, width, dtype=torch.long)
        _, elmo = run_file(tmp_path / "model.onnx", {"attention_mask": mask, "input_ids": ids})
        assert elmo.shape == (*shape, tiny_model.config.hidden_size)

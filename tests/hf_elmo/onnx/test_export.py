"""The exported file computes what PyTorch computes, and nothing of the user's is overwritten."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from random_bilms import draw_batch, draw_config, run

from hf_elmo import ElmoForTokenClassification, ElmoModel
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


def test_a_graph_that_computes_something_else_is_not_written(
    tiny_model: ElmoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_is_near", lambda *_: False)
    with pytest.raises(ValueError, match="Nothing was written"):
        export_onnx(tiny_model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused(tiny_model: ElmoModel, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    head: Any = ElmoForTokenClassification(tiny_model.config)
    with pytest.raises(ValueError, match=r"got ElmoForTokenClassification. Heads cannot be"):
        export_onnx(head, path)
    with pytest.raises(ValueError, match="Expected an opset of at least 18, got 17"):
        export_onnx(tiny_model, path, opset=17)
    with pytest.raises(ValueError, match="Expected a model that can be exported, got one on meta"):
        export_onnx(tiny_model.to("meta"), path)
    assert not path.exists()


def test_a_mix_with_layer_norm_is_refused(tiny_model: ElmoModel, tmp_path: Path) -> None:
    tiny_model.config.mix_layer_norm = "sentence"
    with pytest.raises(ValueError, match='Expected mix_layer_norm "none"'):
        export_onnx(tiny_model, tmp_path / "model.onnx")

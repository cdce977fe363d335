"""`python -m hf_elmo info` says what computes here."""

import pytest
from typer.testing import CliRunner

from hf_elmo import ElmoModel
from hf_elmo.__main__ import app
from hf_elmo.inference import info


def test_versions_engines_and_speeds_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "SECONDS", 0.01)
    result = CliRunner().invoke(app, ["info"])
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if " on the GPU: " not in line]
    assert any(f"torch {info.version('torch')}" in line for line in lines)
    assert lines[-5:][0] == "dtype: engine, words a second"
    assert [line.partition(":")[0] for line in lines[-4:]] == list(info.DTYPES)
    assert all(line.rpartition(" ")[2] != "0" for line in lines[-4:])


def test_7_bit_weights_are_named(tiny_model: ElmoModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "has_exact_int8", lambda: False)
    assert info.describe_engine(tiny_model, "int8") == "ONNX Runtime, weights of 7 bits"


def test_a_missing_package_is_named(tiny_model: ElmoModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_elmo.onnx.support.has_onnxruntime", lambda: False)
    assert info.describe_engine(tiny_model, "int8").startswith("not available")
    assert info.describe_engine(tiny_model.half()).startswith("PyTorch, products in float32")


def test_the_engine_of_another_device_is_named(tiny_model: ElmoModel) -> None:
    assert info.describe_engine(tiny_model.to("meta")) == "PyTorch, gates by PyTorch"

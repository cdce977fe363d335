"""onnx and onnxruntime are imported when they are needed, and missed by name."""

import subprocess
import sys

import pytest

from hf_elmo import onnx


def test_the_command_line_starts_without_onnx() -> None:
    code = "import hf_elmo.__main__, sys; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert not {"onnx", "onnxruntime"} & set(output.stdout.split())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnxruntime", "hf_elmo.onnx.ort_model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="onnxruntime is missing: pip install onnx onnxruntime"):
        _ = onnx.OrtElmoModel


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Model'"):
        _ = onnx.Model

"""onnx and onnxruntime are imported when they are needed, and missed by name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_elmo import onnx

# They would keep onnxruntime from what it does by itself.
OVERRIDES = ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")


def test_the_command_line_starts_without_onnx() -> None:
    code = "import hf_elmo.__main__, sys; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert not {"onnx", "onnxruntime"} & set(output.stdout.split())


def test_onnxruntime_collects_no_events_about_the_user(tmp_path: Path) -> None:
    code = (
        "from hf_elmo.bundled import resolve_name; from hf_elmo.onnx import OrtElmoModel\n"
        "OrtElmoModel.from_pretrained(resolve_name('elmo-mini-en')).encode_boundaries()"
    )
    environment = {x: y for x, y in os.environ.items() if x not in OVERRIDES}
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment | {"HOME": str(tmp_path)}
    )
    assert not list(tmp_path.rglob("*onnxruntime*"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnxruntime", "hf_elmo.onnx.ort_model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="onnxruntime is missing: pip install onnx onnxruntime"):
        _ = onnx.OrtElmoModel


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Model'"):
        _ = onnx.Model

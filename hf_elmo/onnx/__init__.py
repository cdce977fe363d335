"""Build the biLM as an ONNX graph from configuration and weights; run and export the graph."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .export import export_onnx
    from .ort_model import OrtElmoModel

# Read when onnxruntime is imported. Without it, versions from 1.29 on collect events for Microsoft.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = ["OrtElmoModel", "export_onnx"]

_MODULES = {"OrtElmoModel": ".ort_model", "export_onnx": ".export"}


def __getattr__(name: str) -> Any:
    """Import onnx and onnxruntime when they are first needed."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULES[name], __name__), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name} needs onnx and onnxruntime; {error.name} is missing: "
            "pip install onnx onnxruntime"
        ) from error

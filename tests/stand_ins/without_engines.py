"""A plugin of pytest, `-p without_engines`: tests without onnxruntime and without oneDNN."""

import sys

import torch

sys.modules["onnxruntime"] = None  # type: ignore[assignment]  # as if it were not installed
torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # a module in its stubs

"""Whether ONNX Runtime can compute a model as PyTorch would."""

import functools
from importlib.util import find_spec

import torch

from hf_elmo.lstm import ElmoLstm, ElmoLstmStack
from hf_elmo.modeling_elmo import ENCODER_CLASSES, ElmoModel
from hf_elmo.weight_fingerprint import fingerprint_module

PLAIN_CLASSES = ENCODER_CLASSES | {ElmoModel, ElmoLstm, ElmoLstmStack}  # of an unmodified biLM
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # float32 holds all of their values


def find_problem(model: ElmoModel, quantization: str | None = None) -> str | None:
    """Return the reason why ONNX Runtime cannot compute a model as PyTorch would, or None."""
    if model.training:
        return "one in training mode"
    is_exact = model.dtype in DTYPES or quantization is not None
    if model.device.type != "cpu" or not is_exact:
        return f"one on {model.device} in {model.dtype}. It computes on a CPU in float32"
    if fingerprint_module(model.config, model, PLAIN_CLASSES) is None:
        return "one with adapters, hooks, replaced modules or tensors made in inference mode"
    if torch.is_autocast_enabled("cpu"):
        return "one under autocast"
    if not has_onnxruntime():
        return "none: onnxruntime is not installed (pip install onnx onnxruntime)"
    return None


@functools.cache
def has_onnxruntime() -> bool:
    """Return whether ONNX Runtime is installed."""
    return find_spec("onnxruntime") is not None

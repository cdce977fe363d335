"""Check whether ONNX Runtime can compute a model as PyTorch would."""

import functools
from importlib.util import find_spec

import torch

from hf_elmo.lstm import ElmoLstm, ElmoLstmStack
from hf_elmo.modeling_elmo import ENCODER_CLASSES, ElmoModel
from hf_elmo.weight_fingerprint import WeightFingerprint, fingerprint_module

PLAIN_CLASSES = ENCODER_CLASSES | {ElmoModel, ElmoLstm, ElmoLstmStack}  # of a plain biLM
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # float32 represents all of their values


def find_problem(model: ElmoModel, quantization: str | None = None) -> str | None:
    """Return the reason why ONNX Runtime cannot compute a model as PyTorch would, or None."""
    return examine(model, quantization)[0]


def examine(
    model: ElmoModel, quantization: str | None
) -> tuple[str | None, WeightFingerprint | None]:
    """Return the same reason as `find_problem`, and the fingerprint of the weights, if taken."""
    is_exact = model.dtype in DTYPES or quantization is not None
    problem = marks = None
    if model.training:
        problem = "one in training mode"
    elif model.device.type != "cpu" or not is_exact:
        problem = f"one on {model.device} in {model.dtype}. It computes on a CPU in float32"
    elif (marks := fingerprint_module(model.config, model, PLAIN_CLASSES)) is None:
        problem = "one with adapters, hooks, replaced modules or tensors made in inference mode"
    elif torch.is_autocast_enabled("cpu"):
        problem = "one under autocast"
    elif not has_onnxruntime():
        problem = "none: onnxruntime is not installed (pip install onnx onnxruntime)"
    return problem, marks


@functools.cache
def has_onnxruntime() -> bool:
    """Return whether ONNX Runtime is installed."""
    return find_spec("onnxruntime") is not None

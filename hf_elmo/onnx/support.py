"""Whether ONNX Runtime can compute a model as PyTorch would."""

from importlib.util import find_spec

import torch

from hf_elmo.lstm import ElmoLstm, ElmoLstmStack
from hf_elmo.modeling_elmo import ENCODER_CLASSES, ElmoModel
from hf_elmo.weight_marks import mark_weights
from hf_elmo.word_cache import is_plain

PLAIN_CLASSES = ENCODER_CLASSES | {ElmoModel, ElmoLstm, ElmoLstmStack}  # of an unmodified biLM


def find_problem(model: ElmoModel, quantization: str | None = None) -> str | None:
    """Return the reason why ONNX Runtime cannot compute a model as PyTorch would, or None."""
    if model.training:
        return "one in training mode"
    is_exact = model.dtype == torch.float32 or quantization is not None
    if model.device.type != "cpu" or not is_exact:
        return f"one on {model.device} in {model.dtype}. It computes on a CPU in float32"
    if not is_plain(model, PLAIN_CLASSES):
        return "one with adapters, hooks or replaced modules"
    if mark_weights(model.config, model.parameters()) is None:
        return "one of tensors made in inference mode"
    if torch.is_autocast_enabled("cpu"):
        return "one under autocast"
    if find_spec("onnxruntime") is None:
        return "none: onnxruntime is not installed (pip install onnx onnxruntime)"
    return None

"""Whether ONNX Runtime can compute a model as PyTorch would."""

import functools
import os
from importlib.util import find_spec

import numpy as np
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


@functools.cache
def has_exact_int8() -> bool:
    """Return whether sums of 8-bit products are exact here, asked once.

    x86 processors without VNNI add pairs of products in 16 bits, which saturates. The environment
    variable `HF_ELMO_INT8` overrides the answer: `exact` or `saturating`.
    """
    override = os.environ.get("HF_ELMO_INT8")
    if override is not None:
        return override == "exact"
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    rows, columns = 64, 32
    ones = numpy_helper.from_array(np.full((rows, columns), 127, np.int8), "weight")
    node = helper.make_node("MatMulInteger", ["x", "weight"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [1, rows])
    y = helper.make_tensor_value_info("y", TensorProto.INT32, [1, columns])
    graph = helper.make_graph([node], "probe", [x], [y], [ones])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (products,) = session.run(None, {"x": np.full((1, rows), 255, np.uint8)})
    return bool((products == rows * 127 * 255).all())

"""Weights in 8 bits, or in 7 bits where sums of 8-bit products saturate."""

import functools
import os
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Quantization: TypeAlias = Literal["int8", "int7"] | None
# Largest absolute value of a weight. Processors without VNNI add two products in 16 bits, and with
# 7-bit weights ("int7"), these sums fit.
LARGEST = {"int8": 127, "int7": 63}


def is_rounded(name: str) -> bool:
    """Return whether a weight is stored in 8 bits: all weights of the LSTMs' products are."""
    return "_lstm.layers." in name


def round_weight(
    weight: npt.NDArray[np.float32], quantization: Literal["int8", "int7"]
) -> tuple[npt.NDArray[np.int8], npt.NDArray[Any]]:
    """Round a weight, with a scale for each output.

    Args:
        weight: Shape `(out, in)`.
        quantization: Number of bits; 7-bit weights are also stored in 8 bits.

    Returns:
        The integers, shape `(in, out)`, and the scales, shape `(out,)`.
    """
    scales = np.maximum(np.abs(weight).max(1), 1e-30) / np.float32(LARGEST[quantization])
    return np.rint(weight / scales[:, None]).astype(np.int8).T, scales


def choose_bits(quantization: Quantization) -> Quantization:
    """Return `"int7"` instead of `"int8"` if this machine's sums of 8-bit products saturate."""
    return "int7" if quantization == "int8" and not has_exact_int8() else quantization


@functools.cache
def has_exact_int8() -> bool:
    """Return whether this machine sums 8-bit products exactly; the answer is cached.

    x86 processors without VNNI add pairs of products in 16 bits, which saturates. The environment
    variable `HF_ELMO_INT8` overrides the answer: `exact` or `saturating`.
    """
    override = os.environ.get("HF_ELMO_INT8")
    if override is not None:
        if override not in ("exact", "saturating"):
            raise ValueError(f"Expected HF_ELMO_INT8 exact or saturating, got {override!r}.")
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

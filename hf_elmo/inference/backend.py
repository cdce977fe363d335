"""The choice between PyTorch and ONNX Runtime for the inference of a biLM."""

import os
import threading
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from hf_elmo.bilm import ElmoBilm
from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.lstm import can_pack
from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.onnx.support import examine, has_onnxruntime

# Multiplications per sentence and time step: 2**19 in the bundled model, 2**23 in the original.
LARGE_STEP = 2**21

Backend: TypeAlias = Literal["auto", "torch", "onnx"]
Quantization: TypeAlias = Literal["int8"] | None

# By process: threads that share a model make only one `OrtElmoModel`. At a fork, a thread of the
# parent may hold the lock of the parent.
_LOCKS: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)


def choose_backend(
    model: ElmoBilm, backend: Backend = "auto", quantization: Quantization = None
) -> ElmoBilm:
    """Choose the engine, PyTorch or ONNX Runtime, that computes a biLM in inference.

    With `"auto"`, PyTorch computes models in training mode, on a GPU, in float64, under autocast,
    or with adapters, hooks or parametrizations. The table is for all other models, if onnxruntime
    is installed (speeds: docs/performance.md):

    | dtype | small model | large model, with oneDNN |
    |---|---|---|
    | float32 | ONNX Runtime | PyTorch |
    | bfloat16 | ONNX Runtime | PyTorch |
    | float16 | ONNX Runtime | PyTorch |
    | int8 | ONNX Runtime | ONNX Runtime |

    Without oneDNN, large models are computed as small ones. ONNX Runtime computes half-precision
    models in float32. In int8, weights have 7 bits on CPUs where sums of 8-bit products saturate.

    Args:
        model: A biLM of PyTorch, or an `OrtElmoModel`, which is returned as it is.
        backend: `"torch"`, `"onnx"`, or `"auto"`. `model.backend` replaces `"auto"`.
        quantization: `"int8"`, which only ONNX Runtime computes, or None.

    Returns:
        `model` itself, or an `OrtElmoModel` with its current weights. The `OrtElmoModel` is cached
        until the weights change.

    Raises:
        ValueError: If the backend is unknown or cannot compute this model, or if an `OrtElmoModel`
            has another quantization.
        ImportError: If onnxruntime is needed and not installed.
    """
    if backend not in ("auto", "torch", "onnx"):
        raise ValueError(f"Expected backend auto, torch or onnx, got {backend!r}.")
    if not isinstance(model, ElmoModel):
        if backend == "onnx" and not isinstance(model, ElmoBilm):
            raise ValueError(
                "Expected an ElmoModel for backend onnx, got "
                f"{type(model).__name__}. Merge its adapters first, or use backend torch."
            )
        if quantization not in (None, getattr(model, "quantization", None)):
            raise ValueError(
                f"Expected quantization None or that of the model, got {quantization!r}. Load the "
                f"model with it: OrtElmoModel.from_pretrained(name, quantization={quantization!r})."
            )
        return model
    backend = model.backend if backend == "auto" else backend
    problem, marks = examine(model, quantization)
    if quantization is None and (
        backend == "torch" or (backend == "auto" and (problem or _has_large_products(model.config)))
    ):
        return model
    if backend == "torch":
        raise ValueError(
            f"Expected quantization None with backend torch, got {quantization!r}. ONNX Runtime "
            "computes in 8 bits: use backend auto or onnx."
        )
    if problem:
        raise ValueError(f"Expected a model that ONNX Runtime can compute, got {problem}.")
    from hf_elmo.onnx import OrtElmoModel

    make = partial(OrtElmoModel.from_model, model, quantization=quantization)
    with _LOCKS[os.getpid()]:
        chosen: OrtElmoModel = model.onnx_model.get((quantization, marks), make)
    return chosen


def is_onnx_default(name: str) -> bool:
    """Return whether `"auto"` selects ONNX Runtime for a float32 model that is not loaded yet."""
    if not has_onnxruntime() or Path(name, "adapter_config.json").exists():
        return False
    config = ElmoConfig.from_pretrained(name)
    return not _has_large_products(config)


def _has_large_products(config: ElmoConfig) -> bool:
    """Return whether a model's matrix products are large, and oneDNN can compute them."""
    step = 4 * config.cell_size * config.projection_size
    return step >= LARGE_STEP and can_pack(torch.float32)

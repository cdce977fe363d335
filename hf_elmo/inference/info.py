"""Versions, processor and speed of this installation, for reports of issues."""

import platform
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import torch
import typer

from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.command_errors import report_errors
from hf_elmo.lstm_kernel_choice import choose_activation
from hf_elmo.lstm_products import can_pack, choose_product_dtype
from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.onnx import support
from hf_elmo.onnx.int8 import has_exact_int8

from .backend import Quantization, choose_backend

PACKAGES = (
    "spacy-elmo", "torch", "transformers", "huggingface-hub", "onnxruntime", "onnx", "numpy",
    "safetensors", "spacy", "thinc", "h5py",
)  # fmt: skip
DTYPES: dict[str, tuple[torch.dtype, Quantization]] = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "float16": (torch.float16, None),
    "int8": (torch.float32, "int8"),
}
SECONDS = 2.0  # of each measurement
ROWS, TOKENS = 8, 25  # sentences of a batch, words of a sentence


@report_errors
def info() -> None:
    """Print versions, processor, GPU, threads, engines and speeds, for an issue report.

    Speeds are words per second through the LSTMs of the bundled model, 8 sentences at a time. Each
    dtype is measured for two seconds on the CPU, and on the GPU if there is one.
    """
    for line in describe():
        typer.echo(line)


def describe() -> Iterator[str]:
    """Describe this installation, line by line."""
    yield f"Python {platform.python_version()}, {platform.platform()}"
    yield ", ".join(f"{name} {_find_version(name)}" for name in PACKAGES)
    capability = torch.backends.cpu.get_cpu_capability()
    yield f"CPU: {platform.machine()}, {capability}, {torch.get_num_threads()} threads"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    yield f"GPU: {gpu}"
    name = resolve_name(BUNDLED_NAME)
    yield f"Model: {name}"
    yield "dtype: engine, words a second"
    for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        for dtype, (torch_dtype, quantization) in DTYPES.items():
            if device != "cpu" and quantization is not None:
                continue
            model = ElmoModel.from_pretrained(name, dtype=torch_dtype).to(device)
            speed = _measure(model, quantization)
            place = "" if device == "cpu" else " on the GPU"
            yield f"{dtype}{place}: {describe_engine(model, quantization)}, {speed:,.0f}"


def describe_engine(model: ElmoModel, quantization: Quantization = None) -> str:
    """Describe how `backend="auto"` computes a model on its device."""
    if model.device.type != "cpu":
        activation = choose_activation(model.device.type, is_fast=True)
        return f"PyTorch, gates by {'Triton' if 'triton' in activation.__module__ else 'PyTorch'}"
    if quantization is not None:
        if support.find_problem(model, quantization):
            return "not available (pip install onnxruntime)"
        return f"ONNX Runtime, weights of {8 if has_exact_int8() else 7} bits"
    if choose_backend(model) is not model:
        return "ONNX Runtime"
    product = choose_product_dtype(model.dtype, "cpu")
    library = "oneDNN" if can_pack(product, "cpu") else "F.linear"
    return f"PyTorch, products in {str(product).removeprefix('torch.')} by {library}"


def _find_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


@torch.inference_mode()
def _measure(model: ElmoModel, quantization: Quantization) -> float:
    """Measure the LSTMs' speed in words per second; 0 if the quantization is not available."""
    if quantization is not None and support.find_problem(model, quantization):
        return 0.0
    bilm = choose_backend(model, quantization=quantization)
    packed = torch.randn(ROWS * TOKENS, model.config.projection_size).to(model.device, bilm.dtype)
    sizes = [ROWS] * TOKENS
    bilm.run_bilm(packed, sizes)
    start, words = time.perf_counter(), 0
    while not words or time.perf_counter() - start < SECONDS:
        bilm.run_bilm(packed, sizes)
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        words += len(packed)
    return words / (time.perf_counter() - start)

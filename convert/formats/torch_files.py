"""Read files of `torch.save` without executing code."""

import os
import zipfile
from pathlib import Path

import torch

from convert import unpack
from convert.layout import ConversionError, FloatArray, LazyTensor


def is_torch_zip(path: Path) -> bool:
    """Recognise a file of PyTorch 1.6 and later by its content, whatever its suffix is."""
    try:
        with zipfile.ZipFile(path) as file:
            return any(name.endswith("/data.pkl") for name in file.namelist())
    except unpack.BROKEN:
        return False


def read_state_dict(path: Path) -> dict[str, LazyTensor]:
    """List the tensors of a `torch.save` file, without executing code.

    Files of PyTorch 1.6 and later are memory-mapped. Older files are read completely, and on
    Windows all files: there, a mapped file cannot be deleted after the conversion.

    Raises:
        ConversionError: If the file is broken, or contains anything except tensors by name.
        OSError: If the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        is_zip = file.read(len(unpack.ZIP_START)) == unpack.ZIP_START
    if is_zip:
        _check_is_stored(path)
    try:
        content = torch.load(
            path, map_location="cpu", weights_only=True, mmap=is_zip and os.name != "nt"
        )
    except Exception as error:  # broken bytes cause all kinds of errors
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConversionError(
            f"{path}: expected tensors of torch.save without code, got: {reason}"
        ) from error
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ConversionError(f"{path}: expected tensors by name, got {type(content).__name__}.")
    for name, tensor in content.items():
        if not isinstance(tensor, torch.Tensor) or not _is_plain(tensor):
            raise ConversionError(f"{path}: {name}: expected a plain tensor, got {type(tensor)}.")
        # A broken stride can make one value look like a million.
        if tensor.numel() * tensor.element_size() > size:
            raise ConversionError(f"{path}: {name}: expected a tensor within the file.")
    return {
        name: _make_tensor(f"{path.name}: {name}", tensor)
        for name, tensor in content.items()
        if tensor.is_floating_point() and tensor.numel()
    }


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is dense: not sparse, quantised, nested or on the meta device."""
    return (
        tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and tensor.device.type == "cpu"
    )


def _check_is_stored(path: Path) -> None:
    """Check that a zip has no compressed files, which PyTorch would unpack without a size limit."""
    try:
        with zipfile.ZipFile(path) as file:
            entries = file.infolist()
    except unpack.BROKEN as error:
        raise ConversionError(f"{path}: expected a file of torch.save, got: {error}.") from error
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ConversionError(
                f"{path}: expected a file of torch.save, got a zip with a compressed "
                f"{entry.filename}."
            )


def _make_tensor(source: str, tensor: torch.Tensor) -> LazyTensor:
    rows = tensor.detach().reshape(tensor.shape or (1,))

    def read_rows(start: int, stop: int) -> FloatArray:
        return rows[start:stop].to(torch.float32).numpy()

    return LazyTensor(source, tuple(rows.shape), read_rows)

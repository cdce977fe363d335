from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from hf_elmo.files.safetensors_header import make_header


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
def test_tensors_behind_a_header_are_read_by_safetensors(tmp_path: Path, dtype: str) -> None:
    tensors = {
        "b": torch.arange(6).reshape(2, 3).to(getattr(torch, dtype)),
        "a": torch.zeros(0, 4, dtype=getattr(torch, dtype)),
        "s": torch.tensor(7, dtype=getattr(torch, dtype)),
    }
    header, starts = make_header(
        {name: (dtype, tensor.shape) for name, tensor in tensors.items()}, {"format": "pt"}
    )
    path = tmp_path / "t.safetensors"
    with path.open("wb") as file:
        file.write(header)
        for tensor, start in zip(tensors.values(), starts, strict=True):
            assert file.tell() == start
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())

    with safe_open(path, "pt") as read:
        assert read.metadata() == {"format": "pt"}
        assert all(torch.equal(read.get_tensor(name), tensors[name]) for name in tensors)
    assert starts[0] % 8 == 0

"""Header of a safetensors file; the values of the tensors can then be written one by one."""

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod

# For each dtype of NumPy or PyTorch: its name in a header, and the number of bytes per value.
DTYPES = {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2), "uint8": ("U8", 1)}


def make_header(
    tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, list[int]]:
    """Make the beginning of a safetensors file; the tensors follow it without gaps.

    The file consists of 8 bytes for the length of a JSON header, the header, and the tensors'
    values (https://huggingface.co/docs/safetensors#format).

    Args:
        tensors: Name of each tensor, its dtype ("float32", "float16", "bfloat16" or "uint8") and
            its shape, in the order of the file.
        metadata: Further entries of the header, such as `{"format": "pt"}`.

    Returns:
        The bytes of the beginning, and the position in the file of each tensor.
    """
    sizes = [prod(shape) * DTYPES[dtype][1] for dtype, shape in tensors.values()]
    edges = list(accumulate(sizes, initial=0))
    table: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    for number, (name, (dtype, shape)) in enumerate(tensors.items()):
        table[name] = {
            "dtype": DTYPES[dtype][0],
            "shape": list(shape),
            "data_offsets": edges[number : number + 2],
        }
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)  # so that the values are aligned
    beginning = len(text).to_bytes(8, "little") + text
    return beginning, [len(beginning) + edge for edge in edges[:-1]]

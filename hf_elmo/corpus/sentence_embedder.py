"""One picklable callable that adds vectors to a batch: the seam of every engine."""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_elmo.bilm import ElmoBilm
from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.inference.backend import Backend, Quantization
from hf_elmo.inference.embedding import MAX_BATCH_TOKENS, Layers, Pooling, embed
from hf_elmo.loading import find_device
from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.tokenization_elmo import ElmoTokenizer

from .arrow import Array, add_vectors, is_arrow, split_words
from .settings import OutputDtype

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class SentenceEmbedder:
    """Add the vectors of each sentence to a batch.

    It is made for engines that send a function to many processes: pickled, it is its arguments. A
    process loads the model when it embeds its first batch, once for all embedders with the same
    arguments, and keeps the vectors of words that it met.

    Attributes:
        model: A folder or a name on the Hub.
        layers: As for `embed`.
        pooling: As for `embed`.
        output_dtype: Of the vectors.
        dtype: What the model computes in.
        quantization: `"int8"` for products of the LSTMs in 8 bits, by ONNX Runtime; or None.
        backend: As for `load_model`.
        device: Such as `"cpu"` or `"cuda"`; None = the best.
        max_batch_tokens: As for `embed`.
        threads: Of PyTorch in a process that loads the model; None = as many as it has.
        text_column: Where a batch has its sentences: lists of words, or words between white space.
        vectors_column: Where the vectors go.
    """

    model: str = BUNDLED_NAME
    _: KW_ONLY
    layers: Layers = "mix"
    pooling: Pooling = "none"
    output_dtype: OutputDtype = "float32"
    dtype: Dtype = "float32"
    quantization: Quantization = None
    backend: Backend = "auto"
    device: str | None = None
    max_batch_tokens: int = MAX_BATCH_TOKENS
    threads: int | None = None
    text_column: str = "text"
    vectors_column: str = "vectors"

    def __call__(self, batch: Any) -> Any:
        """Return the batch with its vectors.

        Args:
            batch: A dictionary of columns (arrays or lists), or a record batch or table of pyarrow.

        Returns:
            The same with one column more. In a dictionary: a list of arrays `(words, width)`, with
            a first axis of layers if `layers="all"`; pooled, one array of all sentences. In Arrow:
            lists of their numbers; the schema's metadata has the JSON `{"layers": ..., "width":
            ...}` under `hf_elmo`, for `np.reshape(numbers, (layers, -1, width))`.

        Raises:
            TypeError: If the batch is neither.
            ValueError: If it lacks the text, or an argument is wrong.
        """
        if not isinstance(batch, dict) and not is_arrow(batch):
            raise TypeError(
                "Expected a dictionary of columns, or a record batch or table of pyarrow, got "
                f"{type(batch).__name__}."
            )
        columns = list(batch) if isinstance(batch, dict) else batch.schema.names
        if self.text_column not in columns:
            raise ValueError(
                f"Expected a column {self.text_column!r} of sentences, got {', '.join(columns)}. "
                "Name the right one with text_column."
            )
        if isinstance(batch, dict):
            arrays = self.embed(map(split_words, batch[self.text_column]))
            vectors = np.stack(arrays) if arrays and self.pooling != "none" else arrays
            return {**batch, self.vectors_column: vectors}
        arrays = self.embed(map(split_words, batch.column(self.text_column).to_pylist()))
        config = self.load()[0].config
        layers = config.num_mixed_layers if self.layers == "all" else 1
        width = cast(int, config.hidden_size)
        return add_vectors(batch, self.vectors_column, arrays, self.output_dtype, layers, width)

    def embed(self, sentences: Iterable[Sequence[str]]) -> list[Array]:
        """Compute the vectors of each sentence, as the function `embed` does."""
        vectors = embed(
            sentences,
            *self.load(),
            layers=self.layers,
            pooling=self.pooling,
            dtype=self.output_dtype,
            max_batch_tokens=self.max_batch_tokens,
        )
        return list(vectors)

    def load(self) -> tuple[ElmoBilm, PreTrainedTokenizerBase]:
        """Load the model and its tokenizer, once a process.

        Raises:
            ValueError: If there is no such model or device.
        """
        return _load_once(
            self.model, self.dtype, self.quantization, self.backend, self.device, self.threads
        )


@lru_cache(maxsize=1)
def _load_once(
    name: str,
    dtype: Dtype,
    quantization: Quantization,
    backend: Backend,
    device: str | None,
    threads: int | None,
) -> tuple[ElmoBilm, PreTrainedTokenizerBase]:
    if threads is not None:
        torch.set_num_threads(threads)
    return load_model(name, dtype=dtype, quantization=quantization, backend=backend, device=device)


def load_model(
    name: str,
    *,
    dtype: Dtype = "float32",
    quantization: Quantization = None,
    backend: Backend = "auto",
    device: str | None = None,
) -> tuple[ElmoBilm, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer, ready to embed.

    Args:
        name: A folder or a name on the Hub.
        dtype: Dtype in which the model computes.
        quantization: `"int8"` for products of the LSTMs in 8 bits, by ONNX Runtime; or None.
        backend: `"auto"` for ONNX Runtime in float32 or 8 bits on a CPU, else PyTorch; `"torch"` or
            `"onnx"`.
        device: Device; None = a GPU if there is one, else the CPU.

    Returns:
        Both.

    Raises:
        ValueError: If there is no such model or device, or the backend cannot do what is asked.
    """
    if Path(name).is_file():
        raise ValueError(
            f"Expected a model's folder or name, got the file {name}. If it is an old checkpoint, "
            f"convert it first: elmo-convert {name} my-elmo"
        )
    place = find_device(device)
    uses_onnx = _uses_onnx(dtype, quantization, backend, place)
    try:
        tokenizer = ElmoTokenizer.from_pretrained(resolve_name(name))
        if uses_onnx:
            from hf_elmo.onnx import OrtElmoModel

            return (
                OrtElmoModel.from_pretrained(resolve_name(name), quantization=quantization),
                tokenizer,
            )
        model = ElmoModel.from_pretrained(resolve_name(name), dtype=getattr(torch, dtype))
    except OSError as error:
        raise ValueError(
            f"Could not load {name!r}, which may be a folder, a name on the Hugging Face Hub or "
            f"{BUNDLED_NAME!r}: {error}"
        ) from error
    return model.to(place), tokenizer


def _uses_onnx(
    dtype: Dtype, quantization: Quantization, backend: Backend, device: torch.device
) -> bool:
    can = device.type == "cpu" and (dtype == "float32" or quantization is not None)
    wants = backend == "onnx" or quantization is not None
    if wants and (backend == "torch" or not can):
        raise ValueError(
            "Expected float32 or int8 on a CPU with ONNX Runtime, which alone computes in int8, "
            f"got dtype {dtype}, quantization {quantization} and backend {backend} on {device}. "
            "Use the device cpu and the backend onnx, or no quantization and the backend torch."
        )
    return can and backend != "torch"

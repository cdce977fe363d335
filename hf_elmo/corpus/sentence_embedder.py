"""Picklable callable that adds vectors to a batch: for worker processes, Ray and Spark."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch

from hf_elmo.bilm import ElmoBilm
from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.inference.backend import Backend, Quantization, is_onnx_default
from hf_elmo.inference.batches import MAX_BATCH_TOKENS
from hf_elmo.inference.embedding import Layers, Pooling, embed
from hf_elmo.loading import find_device
from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.stored_model import check_name
from hf_elmo.tokenization_elmo import ElmoTokenizer

from .arrow import Array, add_vectors, is_arrow, split_words
from .rows import OutputDtype

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class SentenceEmbedder:
    """Add the vectors of each sentence to a batch.

    An embedder can be sent to many processes, because pickling stores only its arguments. A process
    loads the model at its first batch and keeps it for embedders with the same model options, until
    the files in the model's folder change. It also caches the vectors of words.

    Attributes:
        model: Folder or Hub name.
        layers: As for `embed`.
        pooling: As for `embed`.
        output_dtype: Data type of the vectors.
        dtype: Data type of the computation.
        quantization: `"int8"` = LSTM products in 8 bits by ONNX Runtime; None = no quantization.
        backend: As for `load_model`.
        device: Device such as `"cpu"` or `"cuda"`; None = a GPU if there is one.
        max_batch_tokens: As for `embed`.
        threads: PyTorch threads of a process that loads the model; None = unchanged.
        text_column: Input column: lists of words, or texts with whitespace between words.
        vectors_column: Output column.
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
            batch: Dictionary of columns (arrays or lists), or a record batch or table of pyarrow.

        Returns:
            The batch with one more column. In a dictionary, the column is a list of arrays
            `(words, width)`, with a first axis of layers if `layers="all"`. If pooled, the column
            is one array. In Arrow, the column contains flat lists. The schema's metadata contains
            the JSON `{"layers": ..., "width": ...}` under `hf_elmo`, for
            `np.reshape(values, (layers, -1, width))`.

        Raises:
            TypeError: If the batch has another type, or is one row; or if a text is missing as NaN.
            ValueError: If the batch lacks the text column or has a column with the name of the new
                one, or an argument is wrong.
        """
        if not isinstance(batch, Mapping) and not is_arrow(batch):
            raise TypeError(
                "Expected a dictionary of columns, or a record batch or table of pyarrow, got "
                f"{type(batch).__name__}."
            )
        columns = list(batch) if isinstance(batch, Mapping) else batch.schema.names
        if self.text_column not in columns:
            raise ValueError(
                f"Expected a column {self.text_column!r} of sentences, got {', '.join(columns)}. "
                "Name the right one with text_column."
            )
        if isinstance(batch, Mapping) and isinstance(batch[self.text_column], str):
            raise TypeError(
                f"Expected a list of sentences in the column {self.text_column!r}, got a string. "
                "With datasets, use dataset.map(embedder, batched=True)."
            )
        if self.vectors_column in columns:
            raise ValueError(
                f"Expected no column {self.vectors_column!r} in the batch, because the vectors get "
                "this name. Choose another name with vectors_column."
            )
        if isinstance(batch, Mapping):
            arrays = self.embed(map(split_words, batch[self.text_column]))
            vectors = np.stack(arrays) if arrays and self.pooling != "none" else arrays
            return {**batch, self.vectors_column: vectors}
        arrays = self.embed(map(split_words, batch.column(self.text_column).to_pylist()))
        config = self.load()[0].config
        layers = config.num_mixed_layers if self.layers == "all" else 1
        return add_vectors(
            batch, self.vectors_column, arrays, self.output_dtype, layers, config.output_size
        )

    def embed(self, sentences: Iterable[Sequence[str]]) -> list[Array]:
        """Compute the vectors of each sentence, like the function `embed`."""
        vectors = embed(
            sentences,
            *self.load(),
            layers=self.layers,
            pooling=self.pooling,
            dtype=self.output_dtype,
            max_batch_tokens=self.max_batch_tokens,
        )
        return list(vectors)

    def load(self) -> tuple[ElmoBilm, ElmoTokenizer]:
        """Load the model and its tokenizer; a process keeps the last pair while its files do.

        Raises:
            ValueError: If the model or the device does not exist.
        """
        options = {x: getattr(self, x) for x in ("dtype", "quantization", "backend", "device")}
        return _load_once(self._stamp_files(), self.threads, self.model, **options)

    def _stamp_files(self) -> tuple[Any, ...]:
        """Describe the files in the model's folder, to see later whether they have changed."""
        files = [path for path in Path(resolve_name(self.model)).glob("*") if path.is_file()]
        stats = [(path.name, path.stat()) for path in files]
        stamps = [(name, x.st_dev, x.st_ino, x.st_mtime_ns, x.st_size) for name, x in stats]
        return tuple(sorted(stamps))

    def __getstate__(self) -> dict[str, Any]:
        # `datasets` reuses the result of a function whose pickle is the same.
        return {**vars(self), "files": zlib.crc32(repr(self._stamp_files()).encode())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: value for name, value in state.items() if name != "files"})


@lru_cache(maxsize=1)
def _load_once(
    stamps: tuple[Any, ...],  # of the files in the model's folder
    threads: int | None,
    name: str,
    **options: Any,
) -> tuple[ElmoBilm, ElmoTokenizer]:
    if threads is not None:
        torch.set_num_threads(threads)
    return load_model(name, **options)


def load_model(
    name: str,
    *,
    dtype: Dtype = "float32",
    quantization: Quantization = None,
    backend: Backend = "auto",
    device: str | None = None,
) -> tuple[ElmoBilm, ElmoTokenizer]:
    """Load a model and its tokenizer for inference.

    Args:
        name: Folder or Hub name.
        dtype: Data type of the computation.
        quantization: `"int8"` = LSTM products in 8 bits by ONNX Runtime; None = no quantization.
        backend: `"torch"`, `"onnx"`, or `"auto"` as for `choose_backend`.
        device: Device; None = a GPU if there is one, else the CPU.

    Raises:
        ValueError: If the model or the device does not exist, or the backend does not support the
            settings.
        ImportError: If ONNX Runtime is needed and not installed.
    """
    if Path(name).is_file():
        raise ValueError(
            f"Expected a model's folder or name, got the file {name}. If it is an old checkpoint, "
            f"convert it first: elmo-convert {name} my-elmo"
        )
    place = find_device(device)
    uses_onnx = _uses_onnx(dtype, quantization, backend, place)
    try:
        check_name(resolve_name(name))
        tokenizer = ElmoTokenizer.from_pretrained(resolve_name(name))
        if uses_onnx and quantization is None and backend == "auto":
            uses_onnx = is_onnx_default(resolve_name(name))
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
    model.backend = backend
    return model.to(place), tokenizer


def _uses_onnx(
    dtype: Dtype, quantization: Quantization, backend: Backend, device: torch.device
) -> bool:
    if backend not in get_args(Backend):
        raise ValueError(f"Expected backend auto, torch or onnx, got {backend!r}.")
    can = device.type == "cpu" and dtype == "float32"
    wants = backend == "onnx" or quantization is not None
    if wants and (backend == "torch" or not can):
        raise ValueError(
            "Expected dtype float32 on a CPU with ONNX Runtime, which alone computes in int8, "
            f"got dtype {dtype}, quantization {quantization} and backend {backend} on {device}. "
            "Use dtype float32, the device cpu and the backend onnx, or no quantization and the "
            "backend torch."
        )
    return can and backend != "torch"

"""The biLM as ONNX Runtime computes it, on a CPU, for inference."""

import copy
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import onnxruntime
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hf_elmo.bilm import ElmoBilm
from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.lstm import State
from hf_elmo.modeling_elmo import ElmoModel, list_shapes
from hf_elmo.modeling_outputs import ElmoModelOutput
from hf_elmo.stored_model import BILM_PREFIXES, check_weights
from hf_elmo.weight_fingerprint import read_ends
from hf_elmo.word_cache import WordCache, encode_distinct, encode_in_chunks

from .graph import Array, BuiltModel, Direction, Quantization, make_direction, make_encoder

if os.environ.get("ORT_DISABLE_TELEMETRY") == "1":  # the variable has no effect on Windows
    onnxruntime.disable_telemetry_events()

WEIGHTS_FILE = "model.safetensors"
FLOATING = ("F32", "F16", "BF16")  # safetensors' names of dtypes
MAX_CHUNK_STEPS = 512  # word vectors at a time: bounds the memory of the gates' sums
# Sentences at a time: with more, a time step's elementwise operations exceed the processor's cache.
ROWS_AT_ONCE = 16

# Threads of one program can have different numbers of PyTorch's threads; each number has sessions.
MOST_SESSIONS = 2

# Sessions of the parent of this process, never deleted: their threads do not exist after a fork, so
# the deletion would wait forever.
_ABANDONED: list[object] = []


@dataclass
class Sessions:
    """Sessions of ONNX Runtime, for one process and number of threads."""

    process: int  # that made them; a forked child makes its own
    encoder: onnxruntime.InferenceSession  # from the ids of words to their vectors
    directions: list[onnxruntime.InferenceSession]  # from word vectors to layers, forward first
    pool: ThreadPoolExecutor | None  # a thread for the backward direction

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:  # `os` is gone at exit
        if getpid() != self.process:
            _ABANDONED.append((self.encoder, self.directions, self.pool))


class OrtElmoModel(ElmoBilm):
    """A biLM that ONNX Runtime computes on a CPU; call it like an `ElmoModel` in inference.

    The weights do not change: after more training, make a new `OrtElmoModel`. It uses
    `torch.get_num_threads()` threads. Threads may share a model. A forked process or an
    unpickled copy makes its own sessions.

    Args:
        config: Configuration of the biLM.
        read_weights: Returns the weights on the CPU, by the names that they have in `ElmoModel`. It
            is called again for new sessions: after a fork, or for another number of threads.
        quantization: `"int8"` = LSTM products in 8 bits, which is faster, with a mean cosine to
            float32 above .999. Recurrent products have one scale for all rows, so the vectors of a
            sentence vary slightly with its batch. None = float32.

    Raises:
        ValueError: If the quantization is unknown, or a weight is not finite.
    """

    training = False
    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(
        self,
        config: ElmoConfig,
        read_weights: Callable[[], dict[str, Tensor]],
        *,
        quantization: Quantization = None,
    ) -> None:
        if quantization not in ("int8", None):
            raise ValueError(f'Expected quantization "int8" or None, got {quantization!r}.')
        check_weights(read_weights())
        self.config: ElmoConfig = config
        self.quantization: Quantization = quantization
        self.word_cache = WordCache()
        self._read_weights = read_weights
        self._process, self._lock = os.getpid(), threading.Lock()
        self._sessions: dict[int, Sessions] = {}  # by number of threads

    @classmethod
    def from_pretrained(
        cls,
        name: str | PathLike[str],
        *,
        quantization: Quantization = None,
        revision: str = "main",
        **options: Any,
    ) -> Self:
        """Load a biLM from a folder or the Hub.

        The weights of a folder are memory-mapped from its `model.safetensors` while the sessions
        are made. After that, memory holds them in ONNX Runtime's layout, once for each number of
        threads, at most twice.

        Args:
            name: Folder, or name on the Hugging Face Hub.
            quantization: As for the class.
            revision: Branch, tag or commit on the Hub.
            **options: As for `ElmoModel.from_pretrained`; `dtype` is always float32.

        Raises:
            ValueError: As for `ElmoModel.from_pretrained`.
            OSError: If there is no such model.
        """
        found = None if options else _find_weights(Path(name))
        if found is not None:
            return cls(*found, quantization=quantization)
        options["dtype"] = torch.float32
        model = ElmoModel.from_pretrained(name, revision=revision, **options)
        return cls.from_model(model, quantization=quantization)

    @classmethod
    def from_model(cls, model: ElmoModel, *, quantization: Quantization = None) -> Self:
        """Make an `OrtElmoModel` from the current weights of a model in memory.

        Raises:
            ValueError: If the weights are not on the CPU, or their names or shapes are not those of
                a plain `ElmoModel`, for example because of adapters.
        """
        weights = model.state_dict()
        expected = list_shapes(model.config)
        found = {name: tuple(weight.shape) for name, weight in weights.items()}
        if found != expected or model.device.type != "cpu":
            raise ValueError(
                "Expected an unmodified ElmoModel on the CPU, got one on "
                f"{model.device} with other weights: "
                f"{', '.join(sorted(found.keys() ^ expected.keys())) or 'misshapen ones'}. Merge "
                "its adapters first, or use PyTorch."
            )
        return cls(copy.deepcopy(model.config), ModelWeights(weights), quantization=quantization)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights by the names that they have in `ElmoModel`."""
        return self._read_weights()

    def eval(self) -> Self:
        """Return the model, which is always in evaluation mode."""
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> ElmoModelOutput:
        """Compute vectors, with the arguments and the output of `ElmoModel.forward`."""
        with torch.no_grad():
            output: ElmoModelOutput = self.forward(*args, **kwargs)
        return output

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_sessions": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # its weights never change

    def _get_sessions(self) -> Sessions:
        """Return the sessions; make new ones after a fork, or for another number of threads."""
        process, threads = os.getpid(), torch.get_num_threads()
        if self._process != process:
            # A thread of the parent may have held the lock.
            self._sessions, self._lock, self._process = {}, threading.Lock(), process
        if sessions := self._sessions.get(threads):
            return sessions
        with self._lock:
            sessions = self._sessions.get(threads) or self._make_sessions(process, threads)
            known = self._sessions | {threads: sessions}
            self._sessions = dict(list(known.items())[-MOST_SESSIONS:])
            return sessions

    def _make_sessions(self, process: int, threads: int) -> Sessions:
        directions: list[Direction] = ["forward", "backward"]
        directions = directions[: 2 if self.config.bidirectional else 1]
        threads_each = max(1, threads // len(directions))
        runs_both = len(directions) == 2 and threads > 1
        return Sessions(
            process,
            _make_session(make_encoder(self.config, self._read_weights()), threads),
            [
                _make_session(
                    make_direction(self.config, self._read_weights(), direction, self.quantization),
                    threads_each,
                )
                for direction in directions
            ],
            ThreadPoolExecutor(1, "elmo-onnx") if runs_both else None,
        )

    def encode_words(self, input_ids: Tensor | None, word_input_ids: Tensor | None) -> Tensor:
        """Encode words independently of each other, as `ElmoModel.encode_words` does."""
        session = self._get_sessions().encoder

        def encode(input_ids: Tensor | None, word_input_ids: Tensor | None) -> Tensor:
            inputs = {"input_ids": input_ids, "word_input_ids": word_input_ids}
            feeds = {name: x.int().numpy() for name, x in inputs.items() if x is not None}
            return torch.from_numpy(session.run(None, feeds)[0])

        encode_all = partial(encode_in_chunks, encode, self.config)
        ids = input_ids, word_input_ids
        return encode_distinct(encode_all, self.config, self.word_cache, (), *ids)

    def run_lstms(
        self,
        inputs: tuple[Tensor | None, Tensor | None],
        batch_sizes: list[int],
        states: tuple[State | None, State | None],
        *,
        reverse: bool = True,
    ) -> list[tuple[list[Tensor], State]]:
        """Run the LSTMs as `ElmoModel.run_lstms` does with `reverse=True`.

        Raises:
            ValueError: If `reverse` is False and there is a backward direction to run.
        """
        if not reverse and inputs[1] is not None:
            raise ValueError("Expected reverse=True with ONNX Runtime. Use ElmoModel.")
        sessions = self._get_sessions()
        blocks = _divide(np.array(batch_sizes, dtype=np.int64))
        runs = [
            partial(_run_direction, session, x, order, state)
            for session, x, order, state in zip(
                sessions.directions, inputs, (blocks, blocks[::-1]), states, strict=False
            )
            if x is not None and state is not None
        ]
        if len(runs) == 1 or sessions.pool is None:
            return [run() for run in runs]
        backward = sessions.pool.submit(runs[1])
        return [runs[0](), backward.result()]


class Block(NamedTuple):
    """Consecutive time steps of consecutive sentences.

    Attributes:
        rows: Positions of the sentences in the batch.
        is_word: True where a sentence has a word, shape `(tokens, rows)`.
        entries: Index of the packed step at each place, shape `(tokens, rows)`; arbitrary where
            there is no word.
    """

    rows: slice
    is_word: Array
    entries: Array


def _divide(sizes: Array) -> list[Block]:
    """Split packed steps into blocks of at most `ROWS_AT_ONCE` rows and `MAX_CHUNK_STEPS` steps."""
    starts = np.cumsum(sizes) - sizes  # index of the first packed step of each time step
    num_rows = int(sizes[0]) if len(sizes) else 0
    blocks = []
    for row in range(0, num_rows, ROWS_AT_ONCE):
        rows = np.arange(row, min(row + ROWS_AT_ONCE, num_rows))
        is_word = rows < sizes[sizes > row][:, None]
        entries = starts[: len(is_word), None] + rows
        step = max(1, MAX_CHUNK_STEPS // len(rows))
        for first in range(0, len(is_word), step):
            times = slice(first, first + step)
            blocks.append(Block(slice(row, row + len(rows)), is_word[times], entries[times]))
    return blocks


def _run_direction(
    session: onnxruntime.InferenceSession, packed: Tensor, blocks: Sequence[Block], state: State
) -> tuple[list[Tensor], State]:
    """Run one direction over packed steps, block by block."""
    x = packed.detach().float().numpy()
    h, c = (part.detach().float().numpy().copy() for part in state)
    outputs = np.empty((len(h), *x.shape), np.float32)
    for rows, is_word, entries in blocks:
        padded = x.take(entries, axis=0, mode="clip")  # any vector where there is no word
        feeds = {"x": padded, "is_word": is_word[..., None], "h": h[:, rows], "c": c[:, rows]}
        *layers, h[:, rows], c[:, rows] = session.run(None, feeds)
        for number, layer in enumerate(layers):
            outputs[number, entries[is_word]] = layer[is_word]
    return list(torch.from_numpy(outputs)), (torch.from_numpy(h), torch.from_numpy(c))


def _make_session(built: BuiltModel, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    values = map(onnxruntime.OrtValue.ortvalue_from_numpy, built.initializers.values())
    options.add_external_initializers(list(built.initializers), list(values))
    serialized = built.model.SerializeToString()
    return onnxruntime.InferenceSession(serialized, options, ["CPUExecutionProvider"])


class ModelWeights:
    """The weights of a model in memory, which must not change."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights
        self.marks: list[tuple[int, bytes]] | None = self._read_marks()

    def _read_marks(self) -> list[tuple[int, bytes]]:
        # Inference tensors have no version. Fused optimisers do not count their writes.
        weights = self.weights.values()
        return [(0 if w.is_inference() else w._version, read_ends(w)) for w in weights]

    def __call__(self) -> dict[str, Tensor]:
        """Return the weights.

        Raises:
            ValueError: If they have changed.
        """
        if self.marks is not None and self._read_marks() != self.marks:
            raise ValueError(
                "Expected the weights as they were when this model was made; they have changed. "
                "Make a new one with OrtElmoModel.from_model."
            )
        return dict(self.weights)

    def __getstate__(self) -> dict[str, Any]:
        return {"weights": self.weights, "marks": None}  # a copy has its own weights


class WeightsFile:
    """The weights of a biLM in a safetensors file that must not change.

    Args:
        file: The file.
        names: For each weight of the biLM, its name in the file.
    """

    def __init__(self, file: Path, names: dict[str, str]) -> None:
        self.file = file.resolve()
        self.names = names
        self.stamp = self._read_stamp()

    def _read_stamp(self) -> tuple[int, int]:
        status = self.file.stat()
        return status.st_size, status.st_mtime_ns

    def __call__(self) -> dict[str, Tensor]:
        """Map the weights into memory.

        Raises:
            ValueError: If the file has changed or is gone.
        """
        if not self.file.exists() or self._read_stamp() != self.stamp:
            raise ValueError(
                f"Expected the weights in {self.file} as they were when the model was loaded; the "
                "file has changed or is gone. Load the model again."
            )
        with safe_open(self.file, framework="pt") as tensors:
            return {name: tensors.get_tensor(there) for name, there in self.names.items()}


def _find_weights(folder: Path) -> tuple[ElmoConfig, WeightsFile] | None:
    """Find the weights of a folder.

    Returns:
        The configuration and the weights; None if there is an adapter or a quantization, or not one
        complete safetensors file in floating dtypes. `ElmoModel.from_pretrained` then loads or
        refuses the folder.
    """
    file, adapter = folder / WEIGHTS_FILE, folder / "adapter_config.json"
    if not file.is_file() or adapter.exists():
        return None
    config = ElmoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        return None
    expected = list_shapes(config)
    try:
        with safe_open(file, framework="pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 (no mapping)
            shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            dtypes = {name: part.get_dtype() for name, part in slices.items()}
    except SafetensorError:
        return None
    names = {name.removeprefix("elmo."): name for name in shapes}
    found = {
        name: shapes[there]
        for name, there in names.items()
        if name in expected or name.startswith(BILM_PREFIXES)
    }
    if found != expected or any(dtypes[names[name]] not in FLOATING for name in found):
        return None
    return config, WeightsFile(file, {name: names[name] for name in found})

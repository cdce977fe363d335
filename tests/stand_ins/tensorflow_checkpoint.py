"""TensorFlow 1 checkpoints as TensorFlow writes them, without it: of any arrays, or of a biLM."""

import json
import re
import struct
from pathlib import Path

import numpy as np
from bilm_tf import WORDS, Bilm

NO_CHECKSUM = bytes(4)  # a masked CRC-32C in TensorFlow's files, which is not read


def varint(value: int) -> bytes:
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def message(*fields: tuple[int, int | bytes]) -> bytes:
    parts = [
        varint(number << 3) + varint(value)
        if isinstance(value, int)
        else varint(number << 3 | 2) + varint(len(value)) + value
        for number, value in fields
    ]
    return b"".join(parts)


def block(entries: list[tuple[bytes, bytes]]) -> bytes:
    """Pack keys and values, each key without what it shares with the one before."""
    data, before = b"", b""
    for key, value in entries:
        shared = next(
            (i for i in range(len(before)) if key[: i + 1] != before[: i + 1]), len(before)
        )
        own, before = key[shared:], key
        data += varint(shared) + varint(len(own)) + varint(len(value)) + own + value
    data += struct.pack("<II", 0, 1)  # one restart, at the beginning
    return data + bytes([0]) + NO_CHECKSUM


def table(entries: list[tuple[bytes, bytes]]) -> bytes:
    half = len(entries) // 2
    data, handles = b"", []
    for part in (entries[:half], entries[half:]):
        if part:
            packed = block(part)
            handles.append((part[-1][0], varint(len(data)) + varint(len(packed) - 5)))
            data += packed
    index, meta = block(handles), block([])
    footer = varint(len(data) + len(index)) + varint(len(meta) - 5)
    footer += varint(len(data)) + varint(len(index) - 5)
    return data + index + meta + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def entry(array: np.ndarray, offset: int) -> bytes:
    dtype = {"f4": 1, "f8": 2, "i4": 3, "f2": 19}[array.dtype.str[1:]]
    shape = b"".join(message((2, message((1, size)))) for size in array.shape)
    fields = [(1, dtype), (2, shape), (4, offset), (5, array.nbytes)]
    return message(*fields) + varint(6 << 3 | 5) + NO_CHECKSUM


def write_variables(prefix: Path, variables: dict[str, np.ndarray]) -> Path:
    """Write a checkpoint."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    entries, data = {b"": message((1, 1))}, b""
    for name in sorted(variables):
        array = np.asarray(variables[name])
        entries[name.encode()] = entry(array, len(data))
        data += array.tobytes()
    Path(f"{prefix}.data-00000-of-00001").write_bytes(data)
    Path(f"{prefix}.index").write_bytes(table(list(entries.items())))
    return prefix


def trainer_name(bilm: Bilm, name: str) -> str:
    """Name a variable as bilm-tf's trainer does."""
    single = bilm.options["lstm"]["n_layers"] == 1
    cell = "" if single else r"multi_rnn_cell/cell_\2/"
    name = re.sub(r"(RNN_\d)/RNN/MultiRNNCell/Cell(\d)/LSTMCell", rf"\1/rnn/{cell}lstm_cell", name)
    for short, long in (("/W_0", "/kernel"), ("/W_P_0", "/projection/kernel"), ("/B", "/bias")):
        name = re.sub(f"{short}$", long, name)
    return "lm/" + (name if bilm.options["bidirectional"] else name.removeprefix("RNN_0/"))


def trained_variables(bilm: Bilm) -> dict[str, np.ndarray]:
    """Return all that the trainer saves: softmax, slots and scalars too."""
    variables = {trainer_name(bilm, name): array for name, array in bilm.variables.items()}
    random, size = np.random.default_rng(1), bilm.options["lstm"]["projection_dim"]
    if not bilm.words:
        variables["lm/softmax/W"] = random.normal(size=(len(WORDS), size)).astype(np.float32)
    variables["lm/softmax/b"] = random.normal(size=len(WORDS)).astype(np.float32)
    slots = {f"{name}/Adagrad": np.ones_like(array) for name, array in variables.items()}
    scalars = {"global_step": np.float32(660), "train_perplexity": np.float32(99)}
    return variables | slots | scalars  # type: ignore[return-value]


def write_trained(folder: Path, bilm: Bilm) -> Path:
    prefix = write_variables(folder / "model.ckpt-660", trained_variables(bilm))
    (folder / "options.json").write_text(json.dumps(bilm.options))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    return prefix


def module_variables(bilm: Bilm, scope: str) -> dict[str, np.ndarray]:
    """Return what TF-Hub's module saves: a row for "no token" in front, and its LSTMs' state."""
    names = {"W_0": "kernel", "B": "bias", "W_P_0": "projection/kernel"}
    variables = {}
    for name, array in bilm.variables.items():
        cell, _, variable = name.partition("/LSTMCell/")
        long = f"{cell}/rnn/lstm_cell/{names[variable]}" if variable else name
        is_table = name == "char_embed"
        variables[scope + long] = np.pad(array, ((1, 0), (0, 0))) if is_table else array
    variables[f"{scope}Variable"] = np.zeros((8, 4), np.float32)
    return variables

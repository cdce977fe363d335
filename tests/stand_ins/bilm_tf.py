"""bilm-tf in NumPy: random weights in its own layout, and what they compute in float64."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from hf_elmo import ElmoModel, ElmoTokenizer

WORDS = ["<S>", "</S>", "<UNK>", "the", "bank", "naïve"]


@dataclass(frozen=True)
class Bilm:
    """A random biLM: options and variables as bilm-tf has them, by the names that it reads."""

    options: dict[str, Any]
    variables: dict[str, np.ndarray]
    words: list[str] = field(default_factory=list)


def make_bilm(
    *,
    num_layers: int = 2,
    dim: int = 6,
    projection_dim: int = 4,
    is_bidirectional: bool = True,
    filters: tuple[tuple[int, int], ...] = ((1, 3), (2, 4)),
    num_highways: int | None = 1,
    activation: str = "relu",
    num_rows: int = 261,
    max_characters: int = 10,
    reads_words: bool = False,
    skips: bool = True,
    **clips: float | None,
) -> Bilm:
    """Draw a biLM; its clips (`cell_clip`, `proj_clip`) should be small enough to matter."""
    random = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return random.normal(scale=0.5, size=shape).astype(np.float32)

    lstm = {"projection_dim": projection_dim, "dim": dim, "n_layers": num_layers, **clips}
    lstm["use_skip_connections"] = skips
    options: dict[str, Any] = {"bidirectional": is_bidirectional, "lstm": lstm}
    variables = {}
    if reads_words:
        variables["embedding"] = draw(len(WORDS), projection_dim)
    else:
        options["char_cnn"] = {
            "activation": activation,
            "filters": [list(pair) for pair in filters],
            "embedding": {"dim": 2},
            "n_characters": 262,
            "max_characters_per_token": max_characters,
        }
        if num_highways is not None:
            options["char_cnn"]["n_highway"] = num_highways
        variables["char_embed"] = draw(num_rows, 2)
        for i, (width, number) in enumerate(filters):
            variables[f"CNN/W_cnn_{i}"] = draw(1, width, 2, number)
            variables[f"CNN/b_cnn_{i}"] = draw(number)
        size = sum(number for _, number in filters)
        for k in range(num_highways or 0):
            for gate in ("carry", "transform"):
                variables[f"CNN_high_{k}/W_{gate}"] = draw(size, size)
                variables[f"CNN_high_{k}/b_{gate}"] = draw(size)
        if size != projection_dim:
            variables["CNN_proj/W_proj"] = draw(size, projection_dim)
            variables["CNN_proj/b_proj"] = draw(projection_dim)
    for direction in range(2 if is_bidirectional else 1):
        for layer in range(num_layers):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            variables[f"{cell}/W_0"] = draw(2 * projection_dim, 4 * dim)
            variables[f"{cell}/B"] = draw(4 * dim)
            if projection_dim < dim:
                variables[f"{cell}/W_P_0"] = draw(dim, projection_dim)
    return Bilm(options, variables, WORDS if reads_words else [])


def dumped_name(bilm: Bilm, name: str) -> str:
    """Name a variable as bilm-tf's `dump_weights` does, which depends on the biLM's shape."""
    if bilm.options["lstm"]["n_layers"] == 1:
        name = name.replace("MultiRNNCell/Cell0/", "")
    if not bilm.options["bidirectional"]:
        name = name.replace("RNN_0/RNN/", "rnn/")
        for short, long in (("W_0", "kernel"), ("W_P_0", "projection/kernel"), ("B", "bias")):
            name = name.replace(f"LSTMCell/{short}", f"LSTMCell/{long}")
    return name


def write_bilm(folder: Path, bilm: Bilm) -> Path:
    """Write weights.hdf5, options.json and, for word input, vocab.txt."""
    folder.mkdir(exist_ok=True)
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, array in bilm.variables.items():
            file[dumped_name(bilm, name)] = array
    (folder / "options.json").write_text(json.dumps(bilm.options))
    if bilm.words:
        text = "".join(f"{word}\n" for word in bilm.words)
        (folder / "vocab.txt").write_text(text, encoding="utf-8")
    return folder / "weights.hdf5"


# --- Evaluation ---


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


State = dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]  # h, c by direction and layer


def evaluate(bilm: Bilm, words: list[str], state: State | None = None) -> np.ndarray:
    """Compute a sentence's layers, shape `(layers + 1, words, width)`, in float64.

    A state, at first empty, is carried from sentence to sentence, as bilm-tf does; None = zeros.
    """
    weights = {name: array.astype(np.float64) for name, array in bilm.variables.items()}
    vectors = [encode_word(bilm, weights, word) for word in ["<S>", *words, "</S>"]]
    return run_bilm(bilm, weights, np.stack(vectors), state)


def run_bilm(
    bilm: Bilm, weights: dict[str, np.ndarray], vectors: np.ndarray, state: State | None = None
) -> np.ndarray:
    """Compute the layers from the vectors of the words and of both boundaries."""
    state = {} if state is None else state
    directions = [run_direction(bilm, weights, vectors, 0, state)]
    if bilm.options["bidirectional"]:
        reverse = run_direction(bilm, weights, vectors[::-1], 1, state)
        directions.append([layer[::-1] for layer in reverse])
    layers = [np.concatenate(pair, axis=-1) for pair in zip(*directions, strict=True)]
    return np.stack(layers)[:, 1:-1]


def encode_word(bilm: Bilm, weights: dict[str, np.ndarray], word: str) -> np.ndarray:
    if bilm.words:
        return weights["embedding"][bilm.words.index(word if word in bilm.words else "<UNK>")]
    num_cells = bilm.options["char_cnn"]["max_characters_per_token"]
    special = {"<S>": [256], "</S>": [257]}
    codes = special.get(word, list(word.encode()))
    cells = [258, *codes[: num_cells - 2], 259]
    y = encode_cells(bilm, weights, cells + [260] * (num_cells - len(cells)))
    if "CNN_proj/W_proj" in weights:
        y = y @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"]
    return y


def encode_cells(bilm: Bilm, weights: dict[str, np.ndarray], cells: list[int]) -> np.ndarray:
    """Compute what comes out of the highways."""
    options, x = bilm.options["char_cnn"], weights["char_embed"][cells]  # (characters, 2)
    activate = np.tanh if options["activation"] == "tanh" else lambda y: np.maximum(y, 0)
    outputs = []
    for i, (width, _) in enumerate(options["filters"]):
        windows = np.stack([x[j : j + width] for j in range(len(x) - width + 1)])
        scores = np.einsum("jwd,wdn->jn", windows, weights[f"CNN/W_cnn_{i}"][0])
        outputs.append(activate(scores.max(axis=0) + weights[f"CNN/b_cnn_{i}"]))
    y = np.concatenate(outputs)
    for k in range(options.get("n_highway") or 0):
        gate = sigmoid(y @ weights[f"CNN_high_{k}/W_carry"] + weights[f"CNN_high_{k}/b_carry"])
        new = y @ weights[f"CNN_high_{k}/W_transform"] + weights[f"CNN_high_{k}/b_transform"]
        y = gate * np.maximum(new, 0) + (1 - gate) * y
    return y


def run_direction(
    bilm: Bilm,
    weights: dict[str, np.ndarray],
    vectors: np.ndarray,
    direction: int,
    state: State,
) -> list[np.ndarray]:
    lstm, layers = bilm.options["lstm"], [vectors]
    for layer in range(lstm["n_layers"]):
        cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
        kernel, bias = weights[f"{cell}/W_0"], weights[f"{cell}/B"]
        zeros = np.zeros(lstm["projection_dim"]), np.zeros(lstm["dim"])
        h, c = state.get((direction, layer), zeros)
        outputs = []
        for x in layers[-1]:
            i, j, f, o = np.split(np.concatenate([x, h]) @ kernel + bias, 4)
            c = clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j), lstm.get("cell_clip"))
            h = sigmoid(o) * np.tanh(c)
            if f"{cell}/W_P_0" in weights:
                h = clip(h @ weights[f"{cell}/W_P_0"], lstm.get("proj_clip"))
            outputs.append(h)
        state[direction, layer] = h, c
        residual = layers[-1] if layer and lstm["use_skip_connections"] else 0
        layers.append(np.stack(outputs) + residual)
    return layers


def clip(x: np.ndarray, bound: float | None) -> np.ndarray:
    return np.clip(x, -bound, bound) if bound else x


# --- The converted model ---


def run_model(folder: Path, words: list[str]) -> np.ndarray:
    """Compute a sentence's layers with the converted model."""
    model = ElmoModel.from_pretrained(folder).eval()
    inputs = ElmoTokenizer.from_pretrained(folder)(
        [words], is_split_into_words=True, return_tensors="pt"
    )
    with torch.no_grad():
        outputs = model(**inputs, output_hidden_states=True)
    return torch.cat(outputs.hidden_states).numpy()

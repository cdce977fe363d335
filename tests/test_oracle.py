"""The converted models compute what bilm-tf and AllenNLP have computed with the same weights."""

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
from bilm_tf import Bilm, dumped_name, evaluate
from torch import Tensor

from convert import convert_checkpoint
from hf_elmo import ElmoModel, ElmoScalarMix, ElmoState, ElmoTokenizer
from hf_elmo.bilm import ElmoBilm

TOLERANCE = {"atol": 1e-5, "rtol": 0.0}  # float32
# After more than two batches, the rounding of float32 adds up: 1.4e-5 in the order of SSE4.1.
LATE_TOLERANCE = {"atol": 2e-5, "rtol": 0.0}
# A float64 model differs from the two programs by what they have rounded, on any processor.
FLOAT64_TOLERANCE = {"atol": 6.5e-6, "rtol": 0.0}
ALONE, IN_TURN = ["A", "B", "C", "D"], ["A+B", "A+C+D+B"]  # batches and sequences of batches
SEQUENCES = {
    ("bilm", "tiny"): [*ALONE, "E", *IN_TURN],
    ("bilm", "tinyF"): ["F"],  # has an empty sentence
    ("bilm", "odd"): [*ALONE, "A+B"],
    ("bilm", "odd2"): [*ALONE, "A+B"],
    ("bilm", "train_tiny"): ["A", "B", "A+B"],
    ("allennlp", "tiny"): [*ALONE, "E", *IN_TURN],
    ("allennlp", "tinyF"): ["F"],
    ("allennlp", "train_tiny"): ["A", "B", "A+B"],
}
# Differences of log-softmax and gamma of the "set" mixes of both programs.
MIX_WEIGHTS, MIX_GAMMA = [0.0, -1.5, 1.5], 1.7


class Loaded(NamedTuple):
    model: ElmoBilm
    tokenizer: ElmoTokenizer


@pytest.fixture(scope="session", params=["torch", "float64", "onnx"])
def load(
    request: pytest.FixtureRequest, oracle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Loaded]:
    """Convert a model of the oracle and load it for each engine, once a session."""
    loaded: dict[str, Loaded] = {}

    def load(name: str) -> Loaded:
        if name not in loaded:
            folder = tmp_path_factory.mktemp("oracle") / name
            convert_checkpoint(oracle / "models" / name / "weights.hdf5", folder)
            dtype = torch.float64 if request.param == "float64" else torch.float32
            model: Any = ElmoModel.from_pretrained(folder, dtype=dtype).eval()
            if request.param == "onnx":
                from hf_elmo.onnx import OrtElmoModel  # not there in .ci/run's third run

                model = OrtElmoModel.from_pretrained(folder)
            loaded[name] = Loaded(model, ElmoTokenizer.from_pretrained(folder))
        return loaded[name]

    return load


class Step(NamedTuple):
    """A batch of a sequence: its words, what the program computed, what the model computes."""

    words: list[list[str]]
    expected: dict[str, np.ndarray]
    inputs: dict[str, Tensor]
    outputs: Any
    tolerance: dict[str, float]


@functools.cache
def read_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


def run_sequence(
    oracle: Path, loaded: Loaded, program: str, model: str, sequence: str
) -> Iterator[Step]:
    """Run a sequence of batches, carrying each row's state as the programs do."""
    folder = oracle / "expected"
    batches = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))["batches"]
    arrays = read_arrays(folder / f"{program}_{model}.npz")
    state = None
    for number, batch in enumerate(sequence.split("+")):
        prefix = f"{sequence}/{number}_{batch}/"
        expected = {
            name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)
        }
        words = batches[batch]
        inputs = loaded.tokenizer(
            words, is_split_into_words=True, padding=True, return_tensors="pt"
        )
        with torch.no_grad():
            outputs = loaded.model(
                **inputs,
                state=None if state is None else fit_state(state, len(words), loaded.model),
                keep_sentence_boundaries=True,
                output_hidden_states=True,
            )
        tolerance = TOLERANCE if number < 2 else LATE_TOLERANCE
        yield Step(words, expected, inputs, outputs, tolerance)
        state = outputs.state if state is None else keep_rows(outputs.state, state)


def zip_states(function: Callable[..., Tensor], *states: ElmoState) -> ElmoState:
    parts = [[part for direction in state for part in direction] for state in states]
    h, c, backward_h, backward_c = (function(*part) for part in zip(*parts, strict=True))
    return ElmoState((h, c), (backward_h, backward_c))


def fit_state(state: ElmoState, batch: int, model: ElmoModel) -> ElmoState:
    """Give the first rows of a state, and zeros for rows that never ran."""

    def fit(part: Tensor) -> Tensor:
        missing = max(0, batch - part.shape[1])
        return torch.nn.functional.pad(part[:, :batch], (0, 0, 0, missing))

    return zip_states(fit, state)


def keep_rows(new: ElmoState, old: ElmoState) -> ElmoState:
    """Let the rows that did not run keep their state."""
    return zip_states(lambda a, b: torch.cat([a, b[:, a.shape[1] :]], dim=1), new, old)


def assert_close(
    got: np.ndarray, expected: np.ndarray, tolerance: dict[str, float] = TOLERANCE
) -> None:
    tolerance = FLOAT64_TOLERANCE if got.dtype == np.float64 else tolerance
    np.testing.assert_allclose(got, expected, **tolerance)


def words_only(layers: Tensor, mask: np.ndarray) -> np.ndarray:
    return layers.numpy()[:, mask]


@pytest.fixture(
    params=[(*run, sequence) for run, sequences in SEQUENCES.items() for sequence in sequences],
    ids="-".join,
)
def steps(
    request: pytest.FixtureRequest, oracle: Path, load: Callable[[str], Loaded]
) -> Iterator[Step]:
    program, model, sequence = request.param
    return run_sequence(oracle, load(model.removesuffix("F")), program, model, sequence)


def test_layers_of_words_equal_the_originals(steps: Iterator[Step]) -> None:
    for step in steps:
        expected = np.moveaxis(step.expected["lm_embeddings"], 1, 0)
        mask = step.expected["mask"]
        lengths = mask.sum(axis=1)
        assert lengths.tolist() == [len(words) for words in step.words]
        layers = torch.stack(step.outputs.hidden_states)[:, :, 1:-1]  # without <S>; </S> is masked
        assert_close(words_only(layers, mask), expected[:, mask], step.tolerance)


def test_layers_with_boundaries_equal_the_originals(steps: Iterator[Step]) -> None:
    for step in steps:
        expected, mask = step.expected["with_bos_eos"], step.outputs.attention_mask.bool().numpy()
        layers = torch.stack(step.outputs.hidden_states)
        assert mask.sum(axis=1).tolist() == [len(words) + 2 for words in step.words]
        assert_close(words_only(layers, mask), expected[:, mask], step.tolerance)


def test_character_ids_and_masks_equal_the_originals(steps: Iterator[Step]) -> None:
    for step in steps:
        ids, mask = step.expected["char_ids"], step.expected["mask"]
        if ids.shape[1] == mask.shape[1] + 2:  # bilm-tf puts the boundaries around
            ids = ids[:, 1:-1] * mask[..., None]
        np.testing.assert_array_equal(step.inputs["input_ids"].numpy(), ids)
        np.testing.assert_array_equal(step.inputs["attention_mask"].numpy().astype(bool), mask)


def test_states_equal_the_originals(steps: Iterator[Step]) -> None:
    for step in steps:
        expected = {
            name.removeprefix("state_after/"): step.expected[name]
            for name in step.expected
            if name.startswith("state_after/")
        }
        forward, backward = step.outputs.state
        for part, got in (("h", 0), ("c", 1)):
            if part in expected:  # AllenNLP: (layers, batch, forward and backward)
                want = expected[part]
            else:  # bilm-tf: an array for each direction and layer
                layers = range(len(forward[got]))
                rows = [
                    np.concatenate([expected[f"{d}{layer}_{part}"] for d in "fb"], axis=-1)
                    for layer in layers
                ]
                want = np.stack(rows)
            have = torch.cat([forward[got], backward[got]], dim=-1).numpy()
            assert_close(have, want[:, : have.shape[1]], step.tolerance)


def test_model_on_dumped_token_embeddings_equals_the_original(oracle: Path, tmp_path: Path) -> None:
    source = oracle / "models" / "tiny"
    options = json.loads((source / "options.json").read_text()) | {"char_cnn": None}
    (tmp_path / "options.json").write_text(json.dumps(options))
    shutil.copy(source / "vocab.txt", tmp_path)
    extra = oracle / "expected" / "extra" / "tiny_token_embeddings.hdf5"
    with (
        h5py.File(source / "weights.hdf5") as weights,
        h5py.File(extra) as tokens,
        h5py.File(tmp_path / "weights.hdf5", "w") as file,
    ):
        tokens.copy("embedding", file)
        for name in ("RNN_0", "RNN_1"):
            weights.copy(name, file)
    convert_checkpoint(tmp_path / "weights.hdf5", tmp_path / "model")
    arrays = read_arrays(oracle / "expected" / "extra" / "bilm_token_input_tiny.npz")
    sentences = [["the", "of", "unknownword"], ["a", "and", "<S>", "<UNK>"]]

    tokenizer = ElmoTokenizer.from_pretrained(tmp_path / "model")
    inputs = tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        model = ElmoModel.from_pretrained(tmp_path / "model").eval()
        outputs = model(**inputs, output_hidden_states=True)

    is_word = inputs["attention_mask"].bool().numpy()
    expected_ids = arrays["ids"][:, 1:-1] * is_word  # bilm-tf puts the boundaries around
    np.testing.assert_array_equal(inputs["word_input_ids"].numpy(), expected_ids)
    layers = torch.stack(outputs.hidden_states).numpy()
    expected = np.moveaxis(arrays["lm_embeddings"], 1, 0)
    np.testing.assert_allclose(layers[:, is_word], expected[:, is_word], **TOLERANCE)


def read_dump(folder: Path, words: list[str]) -> Bilm:
    """Read what bilm-tf's `dump_weights` wrote, by the names that bilm-tf would read."""
    options = json.loads((folder / "options.json").read_text())
    bilm = Bilm(options, {}, [] if "char_cnn" in options else words)
    cells = [
        f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{variable}"
        for direction in range(2)
        for layer in range(options["lstm"]["n_layers"])
        for variable in ("W_0", "B", "W_P_0")
    ]
    dumped = {dumped_name(bilm, name): name for name in cells}

    def read(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            bilm.variables[dumped.get(name, name)] = item[...]

    with h5py.File(folder / "weights.hdf5") as file:
        file.visititems(read)
    return bilm


@pytest.mark.parametrize("name", ["noproj", "one_layer", "uni", "word"])
def test_dumped_variants_equal_a_float64_evaluation(
    name: str, shared: Path, oracle: Path, tmp_path: Path
) -> None:
    folder = shared / "oracle" / "tf_checkpoints" / name
    vocabulary = oracle / "models" / "train_tiny" / "vocab.txt"
    convert_checkpoint(folder / "weights.hdf5", tmp_path / "model", vocabulary=vocabulary)
    words = ["The", "quick", "of", "naïve", "."]

    tokenizer = ElmoTokenizer.from_pretrained(tmp_path / "model")
    inputs = tokenizer([words], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        model = ElmoModel.from_pretrained(tmp_path / "model").eval()
        outputs = model(**inputs, output_hidden_states=True)

    bilm = read_dump(folder, vocabulary.read_text(encoding="utf-8").split())
    layers = torch.cat(outputs.hidden_states).numpy()
    np.testing.assert_allclose(layers, evaluate(bilm, words), **TOLERANCE)


# --- Scalar mixes ---


@pytest.fixture
def batch_a(oracle: Path, load: Callable[[str], Loaded]) -> Any:
    (step,) = run_sequence(oracle, load("tiny"), "bilm", "tiny", "A")
    return step.outputs


MIXES = [
    (program, initial, layer_norm)
    for program in ("bilm", "allennlp")
    for initial in ("init", "set")
    for layer_norm in ("plain", "ln")
]


@pytest.mark.parametrize(("program", "initial", "layer_norm"), MIXES)
def test_scalar_mixes_equal_the_originals(
    oracle: Path, batch_a: Any, program: str, initial: str, layer_norm: str
) -> None:
    files = {"bilm": "bilm_weight_layers_tiny_A.npz", "allennlp": "allennlp_elmo_tiny_A.npz"}
    arrays = read_arrays(oracle / "expected" / "extra" / files[program])
    mix = ElmoScalarMix(
        3,
        weights=MIX_WEIGHTS if initial == "set" else None,
        gamma=MIX_GAMMA if initial == "set" else 1.0,
        layer_norm="batch" if layer_norm == "ln" else "none",
    )
    layers, mask = torch.stack(batch_a.hidden_states), batch_a.attention_mask
    if program == "bilm":  # its statistics are those of the words without the boundaries
        layers = layers[:, :, 1:-1]
        mask = (mask.cumsum(dim=1) < mask.sum(dim=1, keepdim=True)).long()[:, 1:-1]
    got = mix(layers, mask).detach()
    if program == "allennlp":
        got = got[:, 1:-1]
    expected = arrays[f"{initial}_{layer_norm}"]
    is_word = (expected != 0).any(axis=-1) if program == "allennlp" else mask.bool().numpy()
    # gamma scales the rounding too
    tolerance = {**TOLERANCE, "atol": mix.gamma.item() * TOLERANCE["atol"]}
    assert_close(got.numpy()[is_word], expected[is_word], tolerance)

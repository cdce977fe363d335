"""A converted model must compute what the original program has stored."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from bilm_tf import Bilm, State, evaluate, make_bilm, write_bilm

from convert import ConversionError, convert_checkpoint

SENTENCES = ["the naïve bank", "bank", "a b c d e", "the bank"]


@pytest.fixture
def bilm() -> Bilm:
    return make_bilm(cell_clip=0.4, proj_clip=0.3)


@pytest.fixture
def weights(bilm: Bilm, tmp_path: Path) -> Path:
    return write_bilm(tmp_path / "source", bilm)


def evaluate_in_rows(bilm: Bilm, sentences: Sequence[str], num_rows: int) -> list[np.ndarray]:
    """Compute sentences in batches, each row of a batch with a state of its own."""
    states: list[State] = [{} for _ in range(num_rows)]
    return [
        evaluate(bilm, sentence.split(), states[number % num_rows])
        for number, sentence in enumerate(sentences)
    ]


def write_activations(path: Path, arrays: Sequence[np.ndarray]) -> Path:
    """Write HDF5 as bilm-tf's `dump_bilm_embeddings` does."""
    with h5py.File(path, "w") as file:
        for number, array in enumerate(arrays):
            file.create_dataset(str(number), data=array.astype(np.float32))
    return path


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_activations_of_bilm_tf_carry_the_state_from_line_to_line(
    bilm: Bilm, weights: Path, tmp_path: Path
) -> None:
    arrays = evaluate_in_rows(bilm, SENTENCES, 1)
    activations = write_activations(tmp_path / "dump.hdf5", arrays)
    write_lines(tmp_path / "dump.txt", SENTENCES)
    result = convert_checkpoint(weights, tmp_path / "model", verify=activations)
    assert result.difference is not None
    assert 0 < result.difference < 1e-5


def test_activations_of_allennlp_carry_the_state_in_64_rows(
    bilm: Bilm, weights: Path, tmp_path: Path
) -> None:
    sentences = [f"sentence {number}" for number in range(70)]
    arrays = evaluate_in_rows(bilm, sentences, 64)
    activations = write_activations(tmp_path / "elmo.hdf5", arrays)
    index = {sentence: str(number) for number, sentence in enumerate(sentences)}
    with h5py.File(activations, "a") as file:
        dataset = file.create_dataset("sentence_to_index", (1,), h5py.string_dtype("utf-8"))
        dataset[0] = json.dumps(index)
    result = convert_checkpoint(weights, tmp_path / "model", verify=activations)
    assert result.difference is not None
    assert 0 < result.difference < 1e-5


def test_activations_without_state_in_npz_with_its_sentences(
    bilm: Bilm, weights: Path, tmp_path: Path
) -> None:
    arrays = {str(n): evaluate(bilm, line.split()) for n, line in enumerate(SENTENCES)}
    np.savez(tmp_path / "x.npz", sentences=np.array(SENTENCES), **arrays)
    result = convert_checkpoint(weights, tmp_path / "model", verify=tmp_path / "x.npz")
    assert result.difference is not None
    assert 0 < result.difference < 1e-5


def test_activations_without_state_of_more_sentences_than_a_batch(
    bilm: Bilm, weights: Path, tmp_path: Path
) -> None:
    sentences = [f"sentence {number}" for number in range(70)]
    arrays = [evaluate(bilm, line.split()) for line in sentences]
    activations = write_activations(tmp_path / "x.hdf5", arrays)
    write_lines(tmp_path / "x.txt", sentences)
    result = convert_checkpoint(weights, tmp_path / "model", verify=activations)
    assert result.difference is not None
    assert 0 < result.difference < 1e-5


def test_sentences_in_an_hdf5_file_are_text(bilm: Bilm, weights: Path, tmp_path: Path) -> None:
    arrays = [evaluate(bilm, line.split()) for line in SENTENCES]
    activations = write_activations(tmp_path / "x.hdf5", arrays)
    with h5py.File(activations, "a") as file:
        file["sentences"] = SENTENCES
    result = convert_checkpoint(weights, tmp_path / "model", verify=activations)
    assert result.difference is not None
    assert 0 < result.difference < 1e-5


def test_sentences_that_the_user_names_replace_those_in_the_file(
    bilm: Bilm, weights: Path, tmp_path: Path
) -> None:
    arrays = {str(n): evaluate(bilm, line.split()) for n, line in enumerate(SENTENCES)}
    np.savez(tmp_path / "x.npz", sentences=np.array(["other"]), **arrays)
    (tmp_path / "lines").write_text("\n".join(SENTENCES), encoding="utf-8")  # no end of the last
    files = {"verify": tmp_path / "x.npz", "sentences": tmp_path / "lines"}
    convert_checkpoint(weights, tmp_path / "model", **files)


def test_empty_sentences_are_compared_too(bilm: Bilm, weights: Path, tmp_path: Path) -> None:
    sentences = ["the bank", "", "bank"]
    activations = write_activations(tmp_path / "x.hdf5", evaluate_in_rows(bilm, sentences, 1))
    text = write_lines(tmp_path / "lines", sentences)
    convert_checkpoint(weights, tmp_path / "model", verify=activations, sentences=text)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_held_to_what_rounding_allows(
    dtype: str, bilm: Bilm, weights: Path, tmp_path: Path
) -> None:
    activations = write_activations(tmp_path / "x.hdf5", evaluate_in_rows(bilm, SENTENCES, 1))
    text = write_lines(tmp_path / "x.txt", SENTENCES)
    result = convert_checkpoint(
        weights, tmp_path / "model", verify=activations, sentences=text, dtype=dtype
    )
    assert result.difference is not None
    assert result.difference > 2e-4


def test_other_activations_are_an_error_that_leaves_nothing(
    bilm: Bilm, weights: Path, tmp_path: Path
) -> None:
    arrays = evaluate_in_rows(bilm, SENTENCES, 1)
    arrays[2][1, 3, 4] += 0.01
    activations = write_activations(tmp_path / "x.hdf5", arrays)
    write_lines(tmp_path / "x.txt", SENTENCES)
    message = r"within 0.0002, got a .* of 0.01 in sentence 2\. .* in batches of 1 or 64"
    with pytest.raises(ConversionError, match=message):
        convert_checkpoint(weights, tmp_path / "model", verify=activations)
    assert {path.name for path in tmp_path.iterdir()} == {"source", "x.hdf5", "x.txt"}


def test_activations_that_are_no_numbers_are_no_agreement(
    bilm: Bilm, weights: Path, tmp_path: Path
) -> None:
    arrays = evaluate_in_rows(bilm, SENTENCES, 1)
    arrays[2][1, 3, 4] = np.nan
    activations = write_activations(tmp_path / "x.hdf5", arrays)
    write_lines(tmp_path / "x.txt", SENTENCES)
    with pytest.raises(ConversionError, match="got a difference of inf in sentence 2"):
        convert_checkpoint(weights, tmp_path / "model", verify=activations)


NPY = (
    b"\x93NUMPY\x01\x00v\x00"
    + b"{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }".ljust(118)
)


def drop_text(folder: Path) -> None:
    (folder / "x.txt").unlink()


def drop_layer(folder: Path) -> None:
    with h5py.File(folder / "x.hdf5", "a") as file:
        top = file["1"][-1:]
        del file["1"]
        file["1"] = top


def drop_index(folder: Path) -> None:
    with h5py.File(folder / "x.hdf5", "a") as file:  # as of two equal sentences
        file["sentence_to_index"] = [json.dumps({"bank": "0"})]


def drop_first(folder: Path) -> None:
    with h5py.File(folder / "x.hdf5", "a") as file:
        file.move("0", "9")


def drop_all(folder: Path) -> None:
    write_activations(folder / "x.hdf5", [])
    (folder / "x.txt").write_text("")


MISTAKES = {
    "no sentences": (drop_all, "x.txt: expected at least one sentence, got none"),
    "no text": (drop_text, r"expected its sentences in .*x.txt.* --sentences"),
    "text of another": (
        lambda folder: write_lines(folder / "x.txt", ["a"]),
        "an array for each of the 1 sentences, with its number as the key, got 4",
    ),
    "equal sentences": (
        drop_index,
        "the 1 sentences, .*, got 4. If sentences are equal, pass their text with --sentences",
    ),
    "only the top layer": (
        drop_layer,
        r"sentence 1: expected shape \(3, 1, 8\) .*, got \(1, 1, 8\)",
    ),
    "text that is not UTF-8": (
        lambda folder: (folder / "x.txt").write_bytes(b"na\xefve"),
        "x.txt: expected UTF-8 text, got",
    ),
    "no first array": (drop_first, "sentence 0: could not be read"),
    "empty file": (
        lambda folder: (folder / "x.hdf5").write_bytes(b""),
        "x.hdf5: expected HDF5 or npz, got: No data left",
    ),
    "no arrays": (
        lambda folder: (folder / "x.hdf5").write_text("hello"),
        "x.hdf5: expected HDF5 or npz, got",
    ),
    "one array": (
        lambda folder: (folder / "x.hdf5").write_bytes(NPY),
        "x.hdf5: expected HDF5 or npz, got a single array",
    ),
}


@pytest.mark.parametrize(("edit", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_in_activations_are_named(
    edit: Any, message: str, bilm: Bilm, weights: Path, tmp_path: Path
) -> None:
    write_activations(tmp_path / "x.hdf5", evaluate_in_rows(bilm, SENTENCES, 1))
    write_lines(tmp_path / "x.txt", SENTENCES)
    edit(tmp_path)
    with pytest.raises(ConversionError, match=message):
        convert_checkpoint(weights, tmp_path / "model", verify=tmp_path / "x.hdf5")
    assert not (tmp_path / "model").exists()

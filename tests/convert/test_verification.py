"""A converted model must compute what the original program has stored."""

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
    activations = write_activations(tmp_path / "x.hdf5", evaluate_in_rows(bilm, sentences, 64))
    write_lines(tmp_path / "x.txt", sentences)
    result = convert_checkpoint(weights, tmp_path / "model", verify=activations)
    assert result.difference is not None
    assert 0 < result.difference < 1e-5


def test_activations_without_state_in_npz_with_named_sentences(
    bilm: Bilm, weights: Path, tmp_path: Path
) -> None:
    arrays = {str(n): evaluate(bilm, line.split()) for n, line in enumerate(SENTENCES)}
    np.savez(tmp_path / "x.npz", **arrays)
    (tmp_path / "lines").write_text("\n".join(SENTENCES), encoding="utf-8")  # no end of the last
    files = {"verify": tmp_path / "x.npz", "sentences": tmp_path / "lines"}
    result = convert_checkpoint(weights, tmp_path / "model", **files)
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
    message = r"within 0.0002, got a .* of 0.01\. .* in batches of 1 or 64"
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
    with pytest.raises(ConversionError, match="got a difference of inf"):
        convert_checkpoint(weights, tmp_path / "model", verify=activations)


def drop_layer(folder: Path) -> None:
    with h5py.File(folder / "x.hdf5", "a") as file:
        top = file["1"][-1:]
        del file["1"]
        file["1"] = top


MISTAKES = {
    "no text": (lambda folder: (folder / "x.txt").unlink(), r"No such file .*x.txt"),
    "text of another": (
        lambda folder: write_lines(folder / "x.txt", ["a"]),
        "expected an array for each of the 1 lines of .*x.txt, found 4",
    ),
    "only the top layer": (drop_layer, r"sentence 1: expected shape \(3, 1, 8\) .*, got \(1, 1"),
}


@pytest.mark.parametrize(("edit", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_in_activations_are_named(
    edit: Any, message: str, bilm: Bilm, weights: Path, tmp_path: Path
) -> None:
    write_activations(tmp_path / "x.hdf5", evaluate_in_rows(bilm, SENTENCES, 1))
    write_lines(tmp_path / "x.txt", SENTENCES)
    edit(tmp_path)
    with pytest.raises((ConversionError, OSError), match=message):
        convert_checkpoint(weights, tmp_path / "model", verify=tmp_path / "x.hdf5")
    assert not (tmp_path / "model").exists()

"""Compare a converted model with stored activations of the original implementation."""

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from convert.layout import ConversionError
from hf_elmo import ElmoModel, ElmoTokenizer

# For a model of the original size. float32: the difference between the original implementations.
# Half precision: twice the effect of rounding the weights.
TOLERANCES = {"float32": 2e-4, "float16": 5e-3, "bfloat16": 5e-2}
# The original implementations carry the LSTM state from batch to batch. The batch size is 1 in
# bilm-tf's dump_bilm_embeddings and 64 in AllenNLP's elmo command. None = no carried state.
BATCH_SIZES = (1, 64, None)

Activations = Mapping[str, Any]  # an array (layers + 1, tokens, hidden_size) by sentence number


def verify_model(
    folder: Path, activations: Path, sentences: Path | None = None, *, dtype: str = "float32"
) -> float:
    """Check that a model reproduces stored activations.

    Args:
        folder: Folder of the model.
        activations: HDF5 or npz file of bilm-tf's `dump_bilm_embeddings` or AllenNLP's `elmo`. It
            maps each sentence number, from 0, to an array `(layers + 1, tokens, hidden_size)`.
        sentences: Text file with one sentence per line, words separated by spaces. None = use the
            array `sentences` or AllenNLP's `sentence_to_index` in `activations`, else the .txt file
            of the same name.
        dtype: Data type of the model's file; it determines the tolerance.

    Returns:
        The largest absolute difference.

    Raises:
        ConversionError: If a difference exceeds the tolerance, or files are broken or do not match.
    """
    model = ElmoModel.from_pretrained(folder, dtype="float32").eval()
    tokenizer = ElmoTokenizer.from_pretrained(folder)
    tolerance, least, place = TOLERANCES[dtype], np.inf, ""
    with _open_activations(activations) as stored:
        words = _read_sentences(activations, stored, sentences)
        for batch_size in BATCH_SIZES:
            difference, where = _compare(model, tokenizer, words, stored, batch_size)
            if difference <= tolerance:
                return difference
            if difference <= least:
                least, place = difference, where
    raise ConversionError(
        f"{activations}: expected equal activations within {tolerance}, "
        f"got a difference of {least:.2g} in {place}. The original implementation must have run "
        "without a warm-up, in batches of 1 or 64 sentences."
    )


@contextmanager
def _open_activations(path: Path) -> Iterator[Activations]:
    file: Any
    try:
        file = h5py.File(path, "r") if h5py.is_hdf5(path) else np.load(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConversionError(f"{path}: expected HDF5 or npz, got: {error}.") from error
    if isinstance(file, np.ndarray):
        raise ConversionError(f"{path}: expected HDF5 or npz, got a single array.")
    try:
        yield file
    finally:
        file.close()


def _read_sentences(path: Path, stored: Activations, text: Path | None) -> list[list[str]]:
    if text is None and "sentences" in stored:
        lines = [
            line.decode() if isinstance(line, bytes) else str(line) for line in stored["sentences"]
        ]
    elif text is None and "sentence_to_index" in stored:
        index = json.loads(stored["sentence_to_index"][0])
        lines = sorted(index, key=lambda line: int(index[line]))
    else:
        text = text or path.with_suffix(".txt")
        if not text.is_file():
            raise ConversionError(
                f"{path}: expected its sentences in {text}, found none. Pass them with --sentences."
            )
        try:
            lines = text.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ConversionError(f"{text}: expected UTF-8 text, got: {error}.") from error
        lines = lines[:-1] if lines[-1] == "" else lines
    if not lines:
        raise ConversionError(f"{text or path}: expected at least one sentence, got none.")
    num_stored = sum(name.isdecimal() for name in stored)
    if num_stored != len(lines):
        raise ConversionError(
            f"{path}: expected an array for each of the {len(lines)} sentences, with its number as "
            f"the key, got {num_stored}."
            + (" If sentences are equal, pass their text with --sentences." if not text else "")
        )
    return [line.split() for line in lines]


def _compare(
    model: ElmoModel,
    tokenizer: ElmoTokenizer,
    sentences: list[list[str]],
    stored: Activations,
    batch_size: int | None,
) -> tuple[float, str]:
    """Find the largest difference and its sentence; given a `batch_size`, carry the LSTM state."""
    greatest, place, state = 0.0, "", None
    step = batch_size or 1
    for start in range(0, len(sentences), step):
        batch = sentences[start : start + step]
        ids = tokenizer(batch, is_split_into_words=True, padding=True, return_tensors="pt")
        if state is not None:  # the last batch may be smaller
            state = state.map(itemgetter(np.s_[:, : len(batch)]))
        with torch.inference_mode():
            output = model(**ids, state=state, output_hidden_states=True)
        state = output.state if batch_size else None
        layers = torch.stack(output.hidden_states).numpy()  # (layers + 1, batch, tokens, width)
        for row, words in enumerate(batch):
            name = f"sentence {start + row}"
            want, got = _read_array(stored, str(start + row)), layers[:, row, : len(words)]
            if want.shape != got.shape:
                raise ConversionError(
                    f"Activations of {name}: expected shape {got.shape} "
                    f"(layers + 1, words, hidden_size), got {want.shape}."
                )
            difference = float(np.abs(got - want).max(initial=0))
            if not difference <= greatest:
                greatest, place = np.inf if np.isnan(difference) else difference, name
    return greatest, place


def _read_array(stored: Activations, name: str) -> NDArray[Any]:
    try:
        return np.asarray(stored[name])
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ConversionError(
            f"Activations of sentence {name}: could not be read: {error}."
        ) from error

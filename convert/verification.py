"""Compare a converted model with stored activations of the original implementation."""

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from convert.checkpoint import ConversionError
from hf_elmo import ElmoModel, ElmoTokenizer

# For a model of the original size. float32: the difference between the original implementations.
# Half precision: twice the effect of rounding the weights.
TOLERANCES = {"float32": 2e-4, "float16": 5e-3, "bfloat16": 5e-2}
# The original implementations carry the LSTM state from batch to batch. The batch size is 1 in
# bilm-tf's dump_bilm_embeddings and 64 in AllenNLP's elmo command. None = no carried state.
BATCH_SIZES = (1, 64, None)


def verify_model(
    folder: Path, verify: Path | str, sentences: Path | str | None, *, dtype: str = "float32"
) -> float:
    """Check that a model reproduces stored activations; return the largest difference.

    The HDF5 or npz file `verify`, of bilm-tf's `dump_bilm_embeddings` or AllenNLP's `elmo`, maps
    each sentence number, from 0, to an array `(layers + 1, tokens, hidden_size)`. `sentences` has
    one sentence per line, words between spaces; None = the .txt file of the same name.
    """
    activations = Path(verify)
    sentences = Path(sentences or activations.with_suffix(".txt"))
    words = [line.split() for line in sentences.read_text(encoding="utf-8").splitlines()]
    file = h5py.File(activations) if h5py.is_hdf5(activations) else np.load(activations)
    with file:
        stored = {int(name): np.asarray(file[name]) for name in file if name.isdecimal()}
    if stored.keys() != set(range(len(words))):
        raise ConversionError(
            f"{activations}: expected an array for each of the {len(words)} lines of {sentences}, "
            f"found {len(stored)}."
        )
    model = ElmoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = ElmoTokenizer.from_pretrained(folder)
    differences = []
    for batch_size in BATCH_SIZES:
        differences.append(_compare(model, tokenizer, words, stored, batch_size))
        if differences[-1] <= TOLERANCES[dtype]:
            return differences[-1]
    raise ConversionError(
        f"{activations}: expected equal activations within {TOLERANCES[dtype]}, got a difference "
        f"of {min(differences):.2g}. The original implementation must have run without a warm-up, "
        "in batches of 1 or 64 sentences."
    )


def _compare(
    model: ElmoModel,
    tokenizer: ElmoTokenizer,
    sentences: list[list[str]],
    stored: Mapping[int, Any],
    batch_size: int | None,
) -> float:
    """Find the largest difference; given a `batch_size`, carry the LSTM state."""
    greatest, state = 0.0, None
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
            got, expected = layers[:, row, : len(words)], stored[start + row]
            if got.shape != expected.shape:
                raise ConversionError(
                    f"Activations of sentence {start + row}: expected shape {got.shape} (layers + "
                    f"1, words, hidden_size), got {expected.shape}."
                )
            difference = float(np.abs(got - expected).max(initial=0))
            greatest = max(greatest, np.inf if np.isnan(difference) else difference)
    return greatest

"""Commands killed at random times, or without anybody to tell: the same command finishes them."""

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bilm_tf import make_bilm, write_bilm
from embed_outputs import read_vectors
from faulty_run import run

from convert import convert_checkpoint
from hf_elmo import ElmoConfig
from hf_elmo.__main__ import app

pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
NUM_ROUNDS, KILLS = 10, 3  # in each round one run after the other is killed, then one ends
TEXT = "The\tO\nold\tB-A\ncat\tI-A\n\nNo\tO\nbank\tB-B\n\nA\tO\ncat\tB-A\n\n"
OUTPUTS = {
    "embed h5": "vectors.h5",
    "embed npz": "vectors.npz",
    "embed safetensors": "vectors.safetensors",
    "embed spacy": "vectors.spacy",
    "convert": "model",
    "pretrain": "model",
    "train": "model",
}


def make_command(
    name: str, folder: Path, model: Path, config: ElmoConfig
) -> Callable[[Path], Callable[[], None]]:
    """Make the command of a name that writes to a path."""
    text, settings = folder / "text.conll", folder / "config.json"
    text.write_text(TEXT * 4)
    if name == "convert":
        source = write_bilm(folder / "source", make_bilm(max_characters=50))
        return lambda output: lambda: None if output.exists() else _convert(source, output)
    if name.startswith("embed"):
        arguments = ["--model", str(model), "--max-batch-tokens", "4"]
        return lambda output: lambda: app(["embed", str(text), str(output), *arguments])
    if name == "train":
        arguments = [
            *("train", "ner", "--train", str(text), "--dev", str(text), "--model", str(model)),
            *("--epochs", "4", "--batch-size", "2"),
        ]
    else:
        config.to_json_file(settings)
        arguments = [
            *("pretrain", "--train", str(text), "--config", str(settings), "--vocab-size", "20"),
            *("--negatives", "4", "--window", "5", "--batch-size", "4", "--max-steps", "6"),
            *("--save-every", "1", "--log-every", "1", "--valid", str(text), "--cpu"),
            *("--evaluate-every", "1", "--optimizer", "adagrad"),
        ]
    return lambda output: lambda: app([*arguments, "--output", str(output), "--resume"])


def _convert(source: Path, output: Path) -> None:
    convert_checkpoint(source, output)


def check_same(output: Path, whole: Path) -> None:
    """Check what a command is for: vectors up to rounding, all else bit for bit."""
    if output.name.startswith("vectors"):  # a word's vector has the rounding of its batch
        for value, right in zip(read_vectors(output), read_vectors(whole), strict=True):
            np.testing.assert_allclose(value, right, rtol=0, atol=2e-6)
    else:
        for path in whole.glob("*.safetensors"):
            assert (output / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_same_command_finishes_what_was_killed(
    name: str, tiny_folder: Path, tiny_config: ElmoConfig, tmp_path: Path
) -> None:
    tiny_config.dropout = 0.1
    command = make_command(name, tmp_path, tiny_folder, tiny_config)
    places = [tmp_path / f"round-{number}" for number in range(NUM_ROUNDS + 1)]
    for place in places:
        place.mkdir()
    start = time.monotonic()
    assert run(command(places[0] / OUTPUTS[name]), tmp_path).exit_code == 0
    duration = time.monotonic() - start

    for place in places[1:]:
        rng = random.Random(place.name)
        output = place / OUTPUTS[name]
        times = [rng.uniform(0, duration) for _ in range(KILLS)]
        codes = [run(command(output), tmp_path, seconds=seconds).exit_code for seconds in times]
        last = run(command(output), tmp_path)
        is_done = 0 in codes and name.startswith("embed")  # which says that it is there already
        assert last.exit_code == int(is_done), (place, times, codes)
        check_same(output, places[0] / OUTPUTS[name])
        assert [path.name for path in place.iterdir()] == [output.name], (place, times, codes)


@pytest.mark.parametrize("stream", ["none", "broken"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_is_whole_without_anybody_to_tell(
    name: str, stream: str, tiny_folder: Path, tiny_config: ElmoConfig, tmp_path: Path
) -> None:
    command = make_command(name, tmp_path, tiny_folder, tiny_config)
    whole, output = (tmp_path / folder / OUTPUTS[name] for folder in ("whole", "silent"))
    whole.parent.mkdir()
    output.parent.mkdir()

    def run_silently() -> None:
        if stream == "none":  # as of a service
            sys.stdout = None
        else:
            read_end, write_end = os.pipe()
            os.close(read_end)
            sys.stdout = os.fdopen(write_end, "w", buffering=1)
        command(output)()

    assert run(command(whole), tmp_path).exit_code == 0
    if run(run_silently, tmp_path).exit_code != 0:  # it could not say what it has to say
        run(command(output), tmp_path)
    check_same(output, whole)

"""Commands killed at random times, or without anybody to tell: the same command finishes them.

`pytest -m faults tests/faults/test_random_kills.py --kills 100` kills each a hundred times.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from embed_outputs import READERS
from faulty_run import run
from tqdm import tqdm

from hf_elmo import ElmoConfig
from hf_elmo.__main__ import app

pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
MAX_RUNS = 3  # that are killed one after the other, before one runs to its end
TEXT = "The\tO\nold\tB-A\ncat\tI-A\n\nNo\tO\nbank\tB-B\n\nA\tO\ncat\tB-A\n\n"
OUTPUTS = {
    "embed h5": "vectors.h5",
    "embed npz": "vectors.npz",
    "embed safetensors": "vectors.safetensors",
    "embed spacy": "vectors.spacy",
    "pretrain": "model",
    "train": "model",
}
ENDS_TWICE = {"pretrain", "train"}  # the others refuse an output that is there


def make_command(
    name: str, folder: Path, model: Path, config: ElmoConfig
) -> Callable[[Path], Callable[[], None]]:
    """Make the command of a name that writes to a path."""
    suffix = "conll" if name == "train" else "txt"
    text, valid = folder / f"text.{suffix}", folder / f"valid.{suffix}"
    settings = folder / "config.json"
    for path in (text, valid):
        path.write_text(TEXT * 4)
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
            *("--log-every", "1", "--valid", str(valid), "--cpu"),
            *("--evaluate-every", "1", "--optimizer", "adagrad"),
        ]
    return lambda output: lambda: app([*arguments, "--output", str(output), "--resume"])


def check_same(output: Path, whole: Path) -> None:
    """Check what a command is for: vectors up to rounding, all else bit for bit."""
    if output.name.startswith("vectors"):  # a word's vector has the rounding of its batch
        read = READERS[output.suffix]
        for value, right in zip(read(output), read(whole), strict=True):
            np.testing.assert_allclose(value, right, rtol=0, atol=2e-6)
    elif whole.is_dir():
        for path in whole.glob("*.safetensors"):
            assert (output / path.name).read_bytes() == path.read_bytes()
    else:  # with files beside it
        for path in whole.parent.iterdir():
            assert (output.parent / path.name).read_bytes() == path.read_bytes()


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_same_command_finishes_what_was_killed(
    name: str,
    tiny_folder: Path,
    tiny_config: ElmoConfig,
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    tiny_config.dropout = 0.1
    command = make_command(name, tmp_path, tiny_folder, tiny_config)
    whole = tmp_path / "whole"
    whole.mkdir()
    start = time.monotonic()
    assert run(command(whole / OUTPUTS[name]), tmp_path).exit_code == 0
    duration = time.monotonic() - start

    rng, num_rounds, num_kills = random.Random(name), 0, 0
    while num_kills < pytestconfig.getoption("kills"):
        num_rounds += 1
        place = tmp_path / f"round-{num_rounds}"
        place.mkdir()
        output = place / OUTPUTS[name]
        times = [rng.uniform(0, duration) for _ in range(MAX_RUNS)]
        codes = [run(command(output), tmp_path, seconds=seconds).exit_code for seconds in times]
        was_there = output.exists()
        last = run(command(output), tmp_path).exit_code
        is_refused = last == 1 and was_there and name not in ENDS_TWICE
        assert last == 0 or is_refused, (place, times, codes, last)
        check_same(output, whole / OUTPUTS[name])
        assert list_names(place) == list_names(whole), (place, times, codes)
        num_kills += codes.count(-signal.SIGKILL)


def test_a_run_that_is_killed_while_it_draws_a_bar_does_not_stop_the_next(tmp_path: Path) -> None:
    def draw() -> None:
        with tqdm.get_lock():
            os.kill(os.getpid(), signal.SIGKILL)

    tqdm(disable=True)  # makes the lock, before the forks
    assert run(draw, tmp_path).exit_code == -signal.SIGKILL
    assert run(lambda: tqdm(disable=True).close(), tmp_path, seconds=10).exit_code == 0


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("kind", ["none", "broken"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_is_whole_without_anybody_to_tell(
    name: str, kind: str, stream: str, tiny_folder: Path, tiny_config: ElmoConfig, tmp_path: Path
) -> None:
    command = make_command(name, tmp_path, tiny_folder, tiny_config)
    whole, output = (tmp_path / folder / OUTPUTS[name] for folder in ("whole", "silent"))
    whole.parent.mkdir()
    output.parent.mkdir()

    def run_silently() -> None:
        if kind == "none":  # as of a service
            setattr(sys, stream, None)
        else:
            read_end, write_end = os.pipe()
            os.close(read_end)
            setattr(sys, stream, os.fdopen(write_end, "w", buffering=1))
        command(output)()

    assert run(command(whole), tmp_path).exit_code == 0
    code = run(run_silently, tmp_path).exit_code
    assert code == 0 or kind == "broken"
    if code != 0:  # it could not say what it has to say
        run(command(output), tmp_path)
    check_same(output, whole)

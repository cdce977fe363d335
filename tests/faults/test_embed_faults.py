"""`embed` killed or refused at every change of the file system: the same command finishes it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from embed_outputs import READERS
from faulty_run import Fault, run

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.__main__ import app

pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
SENTENCES = ["The bank raised its rates .", "", "A river bank", "word " * 40, "naïve", "x y z"]


@pytest.fixture
def embed(tiny_model: ElmoModel, tmp_path: Path) -> Callable[[Path], Callable[[], None]]:
    """Make the command that writes some sentences to a file."""
    model, text = tmp_path / "model", tmp_path / "text.txt"
    tiny_model.save_pretrained(model)
    ElmoTokenizer().save_pretrained(model)
    text.write_text("\n".join(SENTENCES) + "\n")
    arguments = ["--model", str(model), "--max-batch-tokens", "4"]
    return lambda output: lambda: app(["embed", str(text), str(output), *arguments])


@pytest.mark.parametrize("fault", ["kill", "interrupt", "terminate", "full", "read-only"])
@pytest.mark.parametrize("suffix", [".h5", ".npz", ".parquet", ".safetensors", ".spacy"])
def test_the_same_command_finishes_what_failed(
    embed: Callable[[Path], Callable[[], None]], tmp_path: Path, suffix: str, fault: Fault
) -> None:
    whole = tmp_path / "whole" / f"vectors{suffix}"
    whole.parent.mkdir()
    code, num_changes = run(embed(whole), whole.parent)
    assert code == 0
    expected = list(READERS[whole.suffix](whole))
    step = 1 if fault == "kill" else num_changes // 5

    for at in range(1, num_changes + 1, step):
        folder = tmp_path / f"at-{at}"
        folder.mkdir()
        output = folder / f"vectors{suffix}"
        first = run(embed(output), folder, fault, at)
        assert first.exit_code != 0 or fault in ("full", "read-only"), (at, first)
        if first.exit_code != 0:  # a disk may fill up when only deleting is left to do
            second = run(embed(output), folder)
            assert second.exit_code == 0, (at, first, second)
        assert [path.name for path in folder.iterdir()] == [output.name], at
        for value, right in zip(READERS[output.suffix](output), expected, strict=True):
            np.testing.assert_array_equal(value, right, err_msg=str(at))

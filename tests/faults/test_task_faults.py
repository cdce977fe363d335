"""`train` of a task killed or refused at changes of the file system: the same command ends it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_run import Fault, check_finishes

from hf_elmo.__main__ import app

pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
TEXT = "The\tO\nold\tB-A\ncat\tI-A\n\nNo\tO\nbank\tB-B\n\nA\tO\ncat\tB-A\n"
MAX_FAULTS = {"kill": 40, "terminate": 5, "interrupt": 5, "full": 5, "read-only": 5}


@pytest.fixture
def train(tmp_path: Path, tiny_folder: Path) -> Callable[[Path], Callable[[], None]]:
    """Make the command that trains a tagger for four epochs, with a checkpoint after each."""
    text = tmp_path / "text.conll"
    text.write_text(TEXT)
    arguments = [
        *("train", "ner", "--train", str(text), "--dev", str(text), "--model", str(tiny_folder)),
        *("--epochs", "4", "--batch-size", "2", "--learning-rate", "0.01", "--resume"),
    ]
    return lambda output: lambda: app([*arguments, "--output", str(output)])


@pytest.mark.parametrize("fault", MAX_FAULTS)
def test_the_same_command_finishes_what_failed(
    train: Callable[[Path], Callable[[], None]], tmp_path: Path, fault: Fault
) -> None:
    check_finishes(train, tmp_path, fault, MAX_FAULTS[fault])

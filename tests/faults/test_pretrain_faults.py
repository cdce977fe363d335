"""`pretrain` killed or refused at changes of the file system: the same command finishes it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from faulty_run import Fault, check_finishes

from hf_elmo import ElmoConfig
from hf_elmo.__main__ import app

pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
LINES = [" ".join(("abcdefghij" * 2)[i : i + n]) for i in range(10) for n in (2, 3, 5, 8)]
MAX_FAULTS = {"kill": 40, "terminate": 5, "full": 5, "read-only": 5}  # of a recipe
HELDOUT = ["--valid", "{valid}", "--evaluate-every", "1"]
RECIPES = {
    "adamw": [],
    "adagrad": ["--optimizer", "adagrad"],
    "adagrad, held-out": [*HELDOUT, "--optimizer", "adagrad"],
    "adamw, held-out": [*HELDOUT, "--patience", "2"],
    "all": [
        *HELDOUT,
        *("--ema", "0.9", "--char-noise", "0.3", "--schedule", "linear", "--accumulate", "2"),
    ],
}


@pytest.fixture
def pretrain(tmp_path: Path, tiny_config: ElmoConfig) -> Callable[..., Callable[[], None]]:
    """Make the command that trains a tiny biLM for three steps, with a checkpoint after each."""
    text, valid, config = (tmp_path / name for name in ("text.txt", "valid.txt", "tiny.json"))
    for path in (text, valid):
        path.write_text("\n".join(LINES) + "\n")
    tiny_config.dropout = 0.1
    tiny_config.to_json_file(config)

    def make(output: Path, recipe: list[str]) -> Callable[[], None]:
        arguments = [
            *("pretrain", "--train", str(text), "--config", str(config), "--output", str(output)),
            *("--vocab-size", "20", "--negatives", "4", "--window", "5", "--batch-size", "4"),
            *("--max-steps", "3", "--keep", "1", "--log-every", "1", "--cpu"),
            *([] if "--valid" in recipe else ["--save-every", "1"]),
            *(argument.format(valid=valid) for argument in recipe),
        ]
        return lambda: app([*arguments, "--resume"])

    return make


@pytest.mark.parametrize("fault", MAX_FAULTS)
@pytest.mark.parametrize("name", RECIPES)
def test_the_same_command_finishes_what_failed(
    pretrain: Callable[..., Callable[[], None]], tmp_path: Path, name: str, fault: Fault
) -> None:
    check_finishes(partial(pretrain, recipe=RECIPES[name]), tmp_path, fault, MAX_FAULTS[fault])

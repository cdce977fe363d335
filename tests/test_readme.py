"""The README and the examples do what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import printed
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# The line that shows that an example has done its work.
PRINTED = {
    "continue_training.py": "perplexity after: ",
    "convert_checkpoint.py": "the same weights: True",
    "protein_vectors.py": "insulin, chain A: 21 residues (21, 16) (16,)",
    "vectors_in_spacy.py": "cosine of the two by layer 0: 1.00",
    "vectors_in_transformers.py": "a task's mix: (3, 5, 256)",
}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run_python(*arguments: str, folder: Path) -> str:
    """Run Python offline; give what it printed."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("block", printed.find_blocks(README, "python"))
def test_code_in_the_readme_prints_what_its_comments_say(block: str, tmp_path: Path) -> None:
    expected = printed.find_printed(block)
    assert expected
    assert run_python("-c", block, folder=tmp_path).splitlines() == expected


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)
    assert len(commands) == 2
    assert commands[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 160


def test_every_example_is_listed() -> None:
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES if f"({path.name})" not in listed] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run_offline(path: Path, tmp_path: Path) -> None:
    assert PRINTED[path.name] in run_python(str(path), folder=tmp_path)

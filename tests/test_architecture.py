"""The house stands as designed: who imports whom, and what importing leaves alone."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("hf_elmo", "spacy_elmo", "convert")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
# What a package imports nowhere; `pickle` stands for all that runs code when it reads.
FORBIDDEN = {
    "hf_elmo": {"spacy_elmo", "convert", "spacy", "thinc", "h5py", "pickle"},
    "spacy_elmo": {"convert", "h5py", "pickle"},
    "convert": {"spacy_elmo", "spacy", "thinc", "pickle"},
}
ALLOWED = {
    "hf_elmo/corpus/sentences.py": {"spacy"},
    "hf_elmo/corpus/writers.py": {"spacy", "h5py"},
    "convert/formats/nlpl.py": {"spacy"},  # for its names of languages
}


def find_imports(path: Path) -> Iterator[str]:
    """Give the top package of each import of a module, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield path.relative_to(ROOT).parts[0] if node.level else str(node.module).split(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_import_only_what_stands_below_them(path: Path) -> None:
    name = path.relative_to(ROOT)
    forbidden = FORBIDDEN[name.parts[0]] - ALLOWED.get(name.as_posix(), set())
    assert forbidden & set(find_imports(path)) == set()


# What a process has before and after an import. The packages that ours stand on are imported first:
# what they change is theirs.
LOOK = """
import logging, os, random, sys, warnings
import accelerate, h5py, numpy, spacy, torch, transformers
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, Trainer, initialization

def look():
    return {
        "environment": dict(os.environ),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.disabled),
        "transformers' logging": transformers.utils.logging.get_verbosity(),
        "transformers' bars": transformers.utils.logging.is_progress_bar_enabled(),
        "random": random.getstate(),
        "numpy's random": str(numpy.random.get_state()),
        "torch's random": torch.get_rng_state().tolist(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "warnings": list(warnings.filters),
        "path": list(sys.path),
        "hooks": (sys.excepthook, sys.displayhook),
    }

before = look()
import convert, hf_elmo.corpus.files, hf_elmo.pretraining.trainer
import spacy_elmo.component, spacy_elmo.mix_report
after = look()
print([name for name in before if before[name] != after[name]])
"""


def test_importing_changes_nothing() -> None:
    result = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert (result.stdout, result.stderr) == ("[]\n", "")

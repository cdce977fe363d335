"""The house stands as designed: its size, who imports whom, what importing changes."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("hf_elmo", "spacy_elmo", "convert")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
# The size of the three packages. Who adds lines takes others out; who takes lines out lowers this.
MAX_LINES = 21_393
MAX_CHECKS = 412  # `raise` and `warn` statements

# What a package imports nowhere; `pickle` stands for all that runs code when it reads.
FORBIDDEN = {
    "hf_elmo": {"spacy_elmo", "convert", "thinc", "pickle"},
    "spacy_elmo": {"convert", "h5py", "pickle"},
    "convert": {"spacy_elmo", "spacy", "thinc", "pickle"},
}
ALLOWED = {"convert/formats/nlpl.py": {"spacy"}}  # for its names of languages
# The rooms of hf_elmo, from the lowest to the highest: a room imports its own and lower ones only.
# What is in no room (the network and what travels to the Hub with it) is below them all.
ROOMS = (
    "files",
    "text",
    "bundled",
    "onnx",
    "inference",
    "corpus",
    "language_model",
    "training",
    "pretraining",
    "tasks",
)
# Heavy optional packages: where they may be imported, and then only inside functions.
OPTIONAL = {
    "h5py": ("hf_elmo/corpus/", "convert/"),
    "spacy": (
        "hf_elmo/text/",
        "hf_elmo/corpus/",
        "hf_elmo/tasks/",
        "convert/formats/nlpl.py",
        "spacy_elmo/",
    ),
    "datasets": ("hf_elmo/text/", "hf_elmo/pretraining/"),
    "matplotlib": ("spacy_elmo/mix_report.py",),
    "pyarrow": ("hf_elmo/text/", "hf_elmo/corpus/"),
    "pyspark": ("hf_elmo/corpus/",),
    "zstandard": ("hf_elmo/text/",),
}
# Without these, nothing in a package works: they may stand at the top of its modules.
NEEDED = {"convert": {"h5py"}, "spacy_elmo": {"spacy"}}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


NAMES = {module_of(path): path for path in MODULES}


def find_imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    """Yield the full name of each module that a module imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in _walk_top(tree) if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{module}.{alias.name}"
                yield full if full in NAMES else module


def _walk_top(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs when a module is imported: no function bodies, nothing for types alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _walk_top(child)


def room_of(module: str) -> int:
    """Return the height of a module of hf_elmo; the command line stands above all rooms."""
    parts = module.split(".")
    if module == "hf_elmo.__main__":
        return len(ROOMS)
    return ROOMS.index(parts[1]) if len(parts) > 1 and parts[1] in ROOMS else -1


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_packages_import_only_what_stands_below_them(path: Path) -> None:
    forbidden = FORBIDDEN[name_of(path).split("/")[0]] - ALLOWED.get(name_of(path), set())
    assert forbidden & {name.partition(".")[0] for name in find_imports(path)} == set()


@pytest.mark.parametrize("path", sorted((ROOT / "hf_elmo").rglob("*.py")), ids=name_of)
def test_rooms_import_only_what_stands_below_them(path: Path) -> None:
    height = room_of(module_of(path))
    higher = {
        name
        for name in find_imports(path)
        if name.startswith("hf_elmo.") and room_of(name) > height
    }
    assert higher == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        name: {found for found in find_imports(path) if found in NAMES and found != name}
        for name, path in NAMES.items()
    }
    while graph:  # take away what imports nothing that is left, until nothing is left
        done = {name for name, imports in graph.items() if not imports & graph.keys()}
        assert done, f"a circle among {', '.join(sorted(graph))}"
        graph = {name: imports for name, imports in graph.items() if name not in done}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_heavy_packages_are_imported_where_they_are_used(path: Path) -> None:
    needed = NEEDED.get(name_of(path).split("/")[0], set())
    everywhere = {name.partition(".")[0] for name in find_imports(path)} & OPTIONAL.keys()
    at_top = {name.partition(".")[0] for name in find_imports(path, top_level_only=True)}
    assert at_top & OPTIONAL.keys() - needed == set()
    for package in everywhere:
        assert name_of(path).startswith(OPTIONAL[package])


def test_the_house_does_not_grow() -> None:
    texts = [path.read_text(encoding="utf-8") for path in MODULES]
    assert sum(text.count("\n") for text in texts) <= MAX_LINES
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    num_warnings = sum(getattr(x, "attr", getattr(x, "id", "")) == "warn" for x in calls)
    assert sum(isinstance(node, ast.Raise) for node in nodes) + num_warnings <= MAX_CHECKS


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
import importlib
for name in MODULES:
    importlib.import_module(name)
after = look()
print([name for name in before if before[name] != after[name]])
"""


def test_importing_changes_nothing() -> None:
    result = subprocess.run(
        [sys.executable, "-c", f"MODULES = {list(NAMES)!r}\n{LOOK}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert (result.stdout, result.stderr) == ("[]\n", "")

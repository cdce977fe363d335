"""Import the scripts of a folder of examples."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def load(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], ModuleType]]:
    """Import scripts of the test module's `FOLDER`, as they import each other."""
    folder: Path = request.module.FOLDER
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module
    for path in folder.glob("*.py"):
        if path.stem not in before:
            sys.modules.pop(path.stem, None)

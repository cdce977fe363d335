"""Fixtures of the demo's tests."""

from pathlib import Path

import pytest
from build_demo import RUNTIME_FILES


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """Return a folder with the files of onnxruntime-web that the page takes, empty."""
    package = tmp_path / "onnxruntime-web"
    (package / "dist").mkdir(parents=True)
    for name in RUNTIME_FILES:
        (package / "dist" / name).touch()
    return package

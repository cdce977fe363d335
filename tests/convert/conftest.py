"""Fixtures of the tests of the converter."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from bilm_tf import make_bilm, write_bilm
from file_server import FileServer, run_file_server


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Weights of a tiny model of bilm-tf, beside its options."""
    return write_bilm(tmp_path / "source", make_bilm(cell_clip=0.4, proj_clip=0.3))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder for the target."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with run_file_server() as server:
        yield server

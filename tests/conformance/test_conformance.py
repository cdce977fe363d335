"""transformers' own model tests, downloaded and run."""

import subprocess
from pathlib import Path

import pytest
from conformance import download, run


@pytest.mark.slow
def test_models_pass_the_model_tests_of_transformers(tmp_path: Path) -> None:
    try:
        download(tmp_path)
    except subprocess.CalledProcessError:
        pytest.skip("needs a package index")
    assert run(tmp_path, "--tb=short") == 0

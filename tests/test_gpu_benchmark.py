"""The benchmark for GPUs measures what is missing, and says when there is no GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).parent / "benchmarks" / "gpu.py"
SMALL = ["--batch-size", "2", "--projection-size", "8", "--cell-size", "16", "--seconds", "0.001"]


def run(*arguments: str) -> str:
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_without_a_gpu_the_program_says_so(tmp_path: Path) -> None:
    assert "No GPU" in run(str(tmp_path / "gpu.json"))
    assert not (tmp_path / "gpu.json").exists()


@pytest.mark.slow
def test_only_what_is_missing_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    run(str(file), "--device", device, *SMALL)
    results = json.loads(file.read_text())
    errors = {key: value for key, value in results.items() if key.startswith("error, ours, ")}
    assert errors.pop("error, ours, float32, 2") < 1e-5
    assert all(value < 0.05 for value in errors.values())
    missing = "inference, ours, bfloat16, 2"
    kept = {**results, missing: None}
    del kept[missing]
    file.write_text(json.dumps(kept))
    output = run(str(file), "--device", device, *SMALL)
    assert [line for line in output.splitlines() if line.count(", ") == 3 and ": " in line] == [
        f"{missing}: {json.loads(file.read_text())[missing]:.3g}"
    ]

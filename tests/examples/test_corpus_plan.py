"""examples/corpus/plan.py: what failures cost, with parts and without."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

PATH = Path(__file__).resolve().parents[2] / "examples" / "corpus" / "plan.py"
HOURS = {"words": 3.6e8, "cores": 10, "rate": 100.0}  # 100 hours of a core


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    return runpy.run_path(str(PATH))


def simulate(plan: dict[str, Any], failures: float, restart: float = 60) -> float:
    chance = np.random.default_rng(0)
    return plan["simulate"](chance, **HOURS, failures=failures, restart=restart, part=8192)


def test_without_failures_only_the_words_cost(plan: dict[str, Any]) -> None:
    assert simulate(plan, failures=0) == pytest.approx(100)


def test_a_failure_costs_a_restart_and_less_than_a_part(plan: dict[str, Any]) -> None:
    assert 100 < simulate(plan, failures=0.1) < 101.5
    assert simulate(plan, failures=0.1, restart=3600) > 105


def test_without_parts_a_failure_costs_all(plan: dict[str, Any]) -> None:
    chance = np.random.default_rng(0)
    assert plan["simulate_whole"](chance, **HOURS, failures=0.01) > 200
    assert plan["simulate_whole"](chance, **HOURS, failures=0.2) == float("inf")


@pytest.mark.slow
def test_the_plot_is_the_one_that_is_shown(plan: dict[str, Any], tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(plan["main"])
    result = CliRunner().invoke(app, [str(tmp_path / "plan.svg")])
    assert "12,288.00 TB; full at 242 cores" in result.output
    assert (tmp_path / "plan.svg").read_text() == PATH.with_suffix(".svg").read_text()

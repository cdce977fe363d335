"""Arguments of `Trainer`."""

from pathlib import Path
from typing import Any

import pytest
import typer

from hf_elmo.__main__ import app
from hf_elmo.pretraining.training_arguments import make_arguments


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Return the defaults of `pretrain`."""
    command = typer.main.get_command(app).commands["pretrain"]  # type: ignore[attr-defined]
    defaults = {parameter.name: parameter.default for parameter in command.params}
    return defaults | {"output": tmp_path, "cpu": True}


@pytest.mark.parametrize(
    ("optimizer", "rate", "schedule"),
    [("adamw", 1e-3, "cosine"), ("adagrad", 0.2, "constant_with_warmup")],
)
def test_each_optimiser_has_its_own_defaults(
    optimizer: str, rate: float, schedule: str, options: dict[str, Any]
) -> None:
    arguments = make_arguments(options | {"optimizer": optimizer}, 8)
    assert (arguments.learning_rate, arguments.lr_scheduler_type) == (rate, schedule)
    assert arguments.per_device_eval_batch_size == 8


def test_given_values_are_kept_zeros_too(options: dict[str, Any]) -> None:
    given = {"learning_rate": 0.3, "schedule": "linear", "weight_decay": 0.0, "max_grad_norm": 0.0}
    arguments = make_arguments(options | given, 8)
    assert (arguments.learning_rate, arguments.lr_scheduler_type) == (0.3, "linear")
    assert arguments.weight_decay == arguments.max_grad_norm == 0


def test_with_held_out_text_each_checkpoint_is_evaluated_and_the_best_is_kept(
    options: dict[str, Any],
) -> None:
    arguments = make_arguments(options | {"valid": ["a.txt"], "evaluate_every": 20, "keep": 2}, 8)
    assert arguments.eval_steps == arguments.save_steps == 20
    assert arguments.eval_strategy == "steps"
    assert arguments.load_best_model_at_end
    assert not arguments.greater_is_better  # a perplexity
    assert arguments.save_total_limit == 2


def test_without_held_out_text_checkpoints_are_only_saved(options: dict[str, Any]) -> None:
    arguments = make_arguments(options | {"save_every": 30}, 8)
    assert (arguments.eval_strategy, arguments.save_steps) == ("no", 30)
    assert not arguments.load_best_model_at_end

"""Defaults of the optimiser and of checkpoints."""

from typing import Any

import pytest

from hf_elmo.pretraining.training_arguments import (
    Optimizer,
    describe_checkpoints,
    describe_optimizer,
)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("adamw", {"learning_rate": 1e-3, "lr_scheduler_type": "cosine", "warmup_steps": 1000}),
        (
            "adagrad",
            {"learning_rate": 0.2, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0},
        ),
    ],
)
def test_each_optimiser_has_its_own_defaults(
    optimizer: Optimizer, expected: dict[str, Any]
) -> None:
    assert expected.items() <= describe_optimizer(optimizer, None, None, None, 0.1).items()


def test_given_values_are_kept_zeros_too() -> None:
    arguments = describe_optimizer("adamw", 0.0, "linear", 0, 0.0)
    expected = {
        "learning_rate": 0.0,
        "lr_scheduler_type": "linear",
        "warmup_steps": 0,
        "weight_decay": 0.0,
    }
    assert expected.items() <= arguments.items()


def test_with_held_out_text_each_checkpoint_is_evaluated_and_the_best_is_kept() -> None:
    arguments = describe_checkpoints(True, 20, 30, 2)
    assert arguments["eval_steps"] == arguments["save_steps"] == 20
    assert arguments["load_best_model_at_end"]
    assert not arguments["greater_is_better"]  # a perplexity


def test_without_held_out_text_checkpoints_are_only_saved() -> None:
    assert describe_checkpoints(False, 20, 30, 2) == {"save_steps": 30, "save_total_limit": 2}

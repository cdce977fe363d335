"""Arguments of `Trainer` for `pretrain`: checkpoints, and settings that all runs share."""

import importlib.util
from typing import Any

STEPS_BETWEEN = 1000  # default number of steps between evaluations or checkpoints

FIXED_ARGUMENTS: dict[str, Any] = {
    "report_to": ["tensorboard"] if importlib.util.find_spec("tensorboard") else [],
    "ddp_find_unused_parameters": False,
    "ignore_data_skip": True,  # the stream stores its own position
    "logging_nan_inf_filter": False,  # the log would show a loss of 0
    "max_steps": 1,  # replaced when the number of processes is known
}


def describe_checkpoints(
    is_evaluated: bool, evaluate_every: int | None, save_every: int | None, keep: int
) -> dict[str, Any]:
    """Return the settings of checkpoints and evaluations for `TrainingArguments`."""
    if not is_evaluated:
        return {"save_steps": save_every or STEPS_BETWEEN, "save_total_limit": keep}
    evaluate_every = evaluate_every or STEPS_BETWEEN
    return {
        "eval_strategy": "steps",
        "eval_steps": evaluate_every,
        "save_steps": evaluate_every,  # so each checkpoint has a perplexity
        "save_total_limit": keep,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_perplexity",
        "greater_is_better": False,
    }

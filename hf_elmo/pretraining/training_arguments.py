"""Optimiser, learning rate and checkpoints of `pretrain`, as arguments of `Trainer`."""

import importlib.util
from typing import Any, Literal

Optimizer = Literal["adamw", "adagrad"]
Schedule = Literal["cosine", "linear", "constant"]

ADAM_BETA2 = 0.99  # gradients of successive windows are similar: forget faster than with 0.999
STEPS_BETWEEN = 1000  # evaluations or checkpoints

FIXED_ARGUMENTS: dict[str, Any] = {
    "report_to": ["tensorboard"] if importlib.util.find_spec("tensorboard") else [],
    "ddp_find_unused_parameters": False,
    "ignore_data_skip": True,  # the stream stores its own position
    "max_steps": 1,  # computed later, when the number of processes is known
}


def describe_optimizer(
    optimizer: Optimizer,
    learning_rate: float | None,
    schedule: Schedule | None,
    warmup_steps: int | None,
    weight_decay: float,
) -> dict[str, Any]:
    """Return the optimiser and its learning rate for `TrainingArguments`."""
    is_adamw = optimizer == "adamw"
    schedule = schedule or ("cosine" if is_adamw else "constant")
    return {
        "optim": "adamw_torch_fused" if is_adamw else "adagrad",
        "adam_beta2": ADAM_BETA2,
        "learning_rate": (1e-3 if is_adamw else 0.2) if learning_rate is None else learning_rate,
        "lr_scheduler_type": "constant_with_warmup" if schedule == "constant" else schedule,
        "warmup_steps": (1000 if is_adamw else 0) if warmup_steps is None else warmup_steps,
        "weight_decay": weight_decay,
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

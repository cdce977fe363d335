"""Arguments of `Trainer` from the options of `pretrain`."""

import importlib.util
from typing import Any

import torch
from transformers import TrainingArguments

STEPS_BETWEEN = 1000  # default number of steps between evaluations or checkpoints
ADAM_BETA2 = 0.99  # gradients of successive windows are similar: forget faster than with 0.999


def make_arguments(options: dict[str, Any], num_eval_rows: int) -> TrainingArguments:
    """Make the arguments of `Trainer`; the number of steps is set when the text has been read.

    Args:
        options: Options of `pretrain` by name, checked by `check_options`.
        num_eval_rows: Number of parallel rows of the held-out text.
    """
    is_adamw = options["optimizer"] == "adamw"
    schedule = options["schedule"] or ("cosine" if is_adamw else "constant")
    every = options["evaluate_every"] or options["save_every"] or STEPS_BETWEEN
    best: dict[str, Any] = {
        "eval_strategy": "steps",
        "eval_steps": every,  # so each checkpoint has a perplexity
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_perplexity",
        "greater_is_better": False,
    }
    return TrainingArguments(
        str(options["output"]),
        max_steps=1,  # replaced when the number of processes is known
        per_device_train_batch_size=options["batch_size"],
        per_device_eval_batch_size=num_eval_rows,
        gradient_accumulation_steps=options["accumulate"],
        max_grad_norm=options["max_grad_norm"],
        optim="adamw_torch_fused" if is_adamw else "adagrad",
        adam_beta2=ADAM_BETA2,
        learning_rate=options["learning_rate"] or (1e-3 if is_adamw else 0.2),
        lr_scheduler_type="constant_with_warmup" if schedule == "constant" else schedule,
        weight_decay=options["weight_decay"],
        bf16=options["bfloat16"],
        seed=options["seed"],
        # Losses need float64, which MPS lacks.
        use_cpu=options["cpu"] or not torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        ignore_data_skip=True,  # the stream stores its own position
        logging_steps=options["log_every"],
        logging_nan_inf_filter=False,  # the log would show a loss of 0
        report_to=["tensorboard"] if importlib.util.find_spec("tensorboard") else [],
        save_steps=every,
        save_total_limit=options["keep"],
        **(best if options["valid"] else {}),
    )

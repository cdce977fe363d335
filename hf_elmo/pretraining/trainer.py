"""Pretraining on Hugging Face's Trainer: windows in, checkpoints that resume exactly out."""

import json
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerCallback, TrainingArguments

from ..modeling_elmo import ElmoState
from .evaluation import evaluate_windows
from .language_model import WindowedLanguageModel
from .streams import WindowStream
from .vocabulary import TargetVocabulary

STREAM_NAME = "stream.json"
STATE_NAME = "bilm_state_{rank}.safetensors"


class ElmoTrainer(Trainer):
    """Train a biLM on windows over streams of text.

    Gradients are those of the loss times the window, as bilm-tf's are: it matters for the bound of
    their norm and for Adagrad.
    """

    model: WindowedLanguageModel

    def __init__(
        self,
        model: WindowedLanguageModel,
        args: TrainingArguments,
        *,
        stream: WindowStream,
        collator: Any,
        vocabulary: TargetVocabulary,
        heldout: Any = None,
        max_hours: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, args, eval_dataset=heldout, **kwargs)
        self.model_accepts_loss_kwargs = False
        self.stream = stream
        self.collator = collator
        self.vocabulary = vocabulary
        self.clock = TrainingClock(max_hours)
        self.add_callback(self.clock)

    def get_train_dataloader(self) -> Any:
        return _Batches(self.stream, self.collator)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:
            warmup = self.args.get_warmup_steps(num_training_steps)

            def factor(step: int) -> float:
                done = max(step / num_training_steps, self.clock.fraction())
                return min(1.0, (step + 1) / max(warmup, 1)) * (
                    0.5 * (1 + math.cos(math.pi * min(1.0, done)))
                    if str(self.args.lr_scheduler_type) != "SchedulerType.CONSTANT"
                    else 1.0
                )

            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], **_: Any) -> Tensor:
        losses = [loss.mean() for loss in model(**inputs) if loss is not None]
        loss = torch.stack(losses).mean()
        window = len(inputs["forward_inputs"])
        return loss + (window - 1) * (loss - loss.detach())  # the value of one, `window` gradients

    def evaluate(self, eval_dataset: Any = None, *_: Any, **__: Any) -> dict[str, float]:
        heldout = self.eval_dataset if eval_dataset is None else eval_dataset
        start = time.time()
        perplexity = evaluate_windows(self.model, heldout())
        metrics = {
            "eval_loss": math.log(perplexity.average),
            "eval_perplexity": perplexity.average,
            "eval_forward_perplexity": perplexity.forward,
            "eval_runtime": time.time() - start,
        }
        if perplexity.backward is not None:
            metrics["eval_backward_perplexity"] = perplexity.backward
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs["perplexity"] = math.exp(min(logs["loss"], 700.0))
            logs["hours"] = self.clock.elapsed() / 3600
            steps = self.state.global_step - self.clock.steps_at_last_log
            words = steps * self.stream.words_per_window * self.args.gradient_accumulation_steps
            logs["words_per_second"] = words / max(1e-9, self.clock.lap(self.state.global_step))
        super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        self.model.model.save_pretrained(folder)
        self.vocabulary.save(folder)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        rank = self.args.process_index
        if self.model.state is not None:
            names = ("forward_h", "forward_c", "backward_h", "backward_c")
            parts = [part for direction in self.model.state if direction for part in direction]
            tensors = {name: part.contiguous() for name, part in zip(names, parts, strict=False)}
            save_file(tensors, Path(output_dir) / STATE_NAME.format(rank=rank))
        if rank == 0:
            position = {"num_windows": self.model.num_windows, **self.stream.state_dict()}
            (Path(output_dir) / STREAM_NAME).write_text(json.dumps(position), "utf-8")

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        position = json.loads((Path(checkpoint) / STREAM_NAME).read_text("utf-8"))
        self.model.num_windows = position["num_windows"]
        self.stream.load_state_dict(position)
        path = Path(checkpoint) / STATE_NAME.format(rank=self.args.process_index)
        parts = {name: part.to(self.args.device) for name, part in load_file(path).items()}
        backward = (parts["backward_h"], parts["backward_c"]) if "backward_h" in parts else None
        self.model.state = ElmoState((parts["forward_h"], parts["forward_c"]), backward)
        super()._load_rng_state(checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        weights = load_file(Path(resume_from_checkpoint) / "model.safetensors")
        self.model.model.load_state_dict(weights)

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))


class TrainingClock(TrainerCallback):
    """Count the time spent in training, over all runs, and end it after `max_hours`."""

    def __init__(self, max_hours: float | None = None) -> None:
        self.max_hours = max_hours
        self.steps_at_last_log = 0
        self._before = self._elapsed = 0.0
        self._start = self._last_log = time.monotonic()

    def elapsed(self) -> float:
        """Return the seconds of training so far."""
        return self._elapsed

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        elapsed = [self._before + time.monotonic() - self._start]
        if args.world_size > 1:  # all processes must go by one clock
            torch.distributed.broadcast_object_list(elapsed)
        self._elapsed = elapsed[0]

    def fraction(self) -> float:
        """Return how much of the time is used up, from 0."""
        return self.elapsed() / (3600 * self.max_hours) if self.max_hours else 0.0

    def lap(self, step: int) -> float:
        """Return the seconds since the last call."""
        now = time.monotonic()
        seconds, self._last_log, self.steps_at_last_log = now - self._last_log, now, step
        return seconds

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._start = self._last_log = time.monotonic()
        self.steps_at_last_log = state.global_step
        hours = [entry["hours"] for entry in state.log_history if "hours" in entry]
        self._before = self._elapsed = 3600 * hours[-1] if hours else 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.fraction() >= 1:
            control.should_training_stop = control.should_save = control.should_evaluate = True


class _Batches:
    """What Trainer takes for a data loader: batches without a length."""

    def __init__(self, windows: Iterable[Any], collator: Any) -> None:
        self._windows, self._collator = windows, collator

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return map(self._collator, self._windows)

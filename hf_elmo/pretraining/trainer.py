"""Pretraining with Hugging Face's Trainer, with exactly resumable checkpoints."""

import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import (
    SchedulerType,
    TrainerCallback,
    TrainingArguments,
)

from hf_elmo.language_model.perplexity import evaluate_stream
from hf_elmo.language_model.scores import convert_to_perplexity
from hf_elmo.language_model.vocabulary import PIECES_NAME, TargetVocabulary
from hf_elmo.language_model.window_streams import WindowCollator, WindowStream
from hf_elmo.language_model.windowed_model import WindowedLanguageModel
from hf_elmo.modeling_heads import ElmoForPreTraining
from hf_elmo.modeling_outputs import ElmoState
from hf_elmo.text.text_reader import SentenceReader
from hf_elmo.tokenization_elmo import ElmoTokenizer
from hf_elmo.training.checkpoints import (
    POSITION_NAME,
    STATE_NAME,
    CheckpointingTrainer,
    list_files,
)

from .learning_rate import RATE_FACTORS, TrainingClock, make_schedule, set_next_rates

STATE_PARTS = ("forward_h", "forward_c", "backward_h", "backward_c")
ADAGRAD_ACCUMULATOR = 1.0  # bilm-tf's initial value (bilm/training.py)


class ElmoTrainer(CheckpointingTrainer[ElmoForPreTraining]):
    """Train a biLM on windows over a stream of text.

    The LSTM state continues from window to window. A checkpoint also contains this state for each
    process, and the position in the text. As in bilm-tf, gradients are multiplied by the
    window size. This matters for gradient clipping and for Adagrad.

    Args:
        model: biLM and softmax, with the LSTM state and the settings of the negatives.
        args: Arguments of Trainer, with `max_steps` and `ignore_data_skip=True`.
        tokenizer: Tokenizer of the biLM.
        vocabulary: Target words.
        stream: Windows of this process's rows.
        heldout: Text for evaluations, or None.
        max_hours: Time limit in hours, including the runs before a resume; a cosine or linear
            learning rate falls accordingly. None = no limit.
        ema: Decay of the moving average of the weights, updated after each step. The average is the
            model that is evaluated and saved; None = no average.
        callbacks: Further callbacks.
    """

    model: WindowedLanguageModel
    advice_after_divergence = " It can begin with the last checkpoint, if any: --from."

    def __init__(
        self,
        model: WindowedLanguageModel,
        args: TrainingArguments,
        *,
        tokenizer: ElmoTokenizer,
        vocabulary: TargetVocabulary,
        stream: WindowStream,
        heldout: SentenceReader | None = None,
        max_hours: float | None = None,
        ema: float | None = None,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._stream = stream
        self._heldout = heldout
        self._clock = TrainingClock(max_hours)
        super().__init__(
            model,
            args,
            trained=model.model,
            ema=ema,
            eval_dataset=heldout,
            callbacks=[self._clock, *(callbacks or [])],
        )
        self.model_accepts_loss_kwargs = False  # all windows have one size: average means

    def save_and_end(self) -> None:
        """Save the model in the output folder, and end all processes together.

        A process that ends earlier, or with open connections, can make another process fail.
        """
        self.check_weights()
        self.save_model(str(self.args.output_dir))
        self.accelerator.wait_for_everyone()
        self.accelerator.end_training()

    def list_files(self, checkpoint: Path) -> list[str]:
        """List the files of a checkpoint for this number of processes."""
        pieces = [] if self._vocabulary.pieces is None else [PIECES_NAME]
        return [*list_files(checkpoint, self.args.world_size), *pieces]

    def restore_position(self, checkpoint: Path) -> bool:
        """Restore the used training time; return whether the steps or the time are used up."""
        position = json.loads((checkpoint / POSITION_NAME).read_text("utf-8"))
        self._clock.elapsed = position["seconds"]
        # The default depends on the number of steps, which may change; older versions lack it.
        self.args.warmup_steps = position.get("warmup_steps", self.args.warmup_steps)
        return self.state.global_step >= self.args.max_steps or self._clock.fraction() >= 1

    def get_train_dataloader(self) -> Any:
        """Return the loader of windows; it has no length, because the text is repeated."""
        return map(WindowCollator(self._tokenizer), self._stream)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create the optimiser; Adagrad starts with bilm-tf's accumulator value."""
        if self.optimizer is None and self.args.optim == "adagrad":
            self.optimizer = torch.optim.Adagrad(
                self.model.parameters(),
                lr=self.args.learning_rate,
                weight_decay=self.args.weight_decay,
                initial_accumulator_value=ADAGRAD_ACCUMULATOR,
            )
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        return optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> LRScheduler:
        """Create the learning-rate schedule, which follows steps or time, whichever is further."""
        shape = RATE_FACTORS.get(SchedulerType(self.args.lr_scheduler_type))
        if self.lr_scheduler is None and shape is not None:
            num_warmup_steps = self.args.get_warmup_steps(num_training_steps)
            self.lr_scheduler = make_schedule(
                optimizer or self.optimizer,
                shape,
                num_warmup_steps,
                num_training_steps,
                self._clock,
            )
            self._created_lr_scheduler = True
        scheduler: LRScheduler = super().create_scheduler(num_training_steps, optimizer)
        return scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and isinstance(self.lr_scheduler, LambdaLR):
            set_next_rates(self.lr_scheduler)

    def compute_loss(  # type: ignore[override]  # no outputs to return
        self, model: nn.Module, inputs: dict[str, Tensor], **_: Any
    ) -> Tensor:
        """Compute the mean loss of both directions; multiply its gradient by the window size."""
        losses = [loss.mean() for loss in model(**inputs) if loss is not None]
        loss = torch.stack(losses).mean()
        window = len(inputs["forward_inputs"])
        return loss + (window - 1) * (loss - loss.detach())

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Compute the held-out perplexity with bilm-tf's protocol.

        A batch has `per_device_eval_batch_size` rows. Every process computes the complete result.
        """
        if self._heldout is None:
            raise ValueError("Expected a held-out text to evaluate on, got None.")
        start = time.monotonic()
        perplexity = evaluate_stream(
            self.kept_model,
            self._tokenizer,
            self._vocabulary,
            self._heldout,
            batch_size=self.args.per_device_eval_batch_size,
        )
        metrics = {
            "eval_loss": math.log(perplexity.average),
            "eval_perplexity": perplexity.average,
            "eval_forward_perplexity": perplexity.forward,
            "eval_targets": perplexity.num_targets,
            "eval_unknown": perplexity.num_unknown,
            "eval_seconds": time.monotonic() - start,
        }
        if perplexity.backward is not None:
            metrics["eval_backward_perplexity"] = perplexity.backward
        return self.report(metrics)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the perplexity of the training softmax, sampled or full, and the speed."""
        # Trainer counts from the last resume.
        self.state.epoch = self.state.global_step / self.args.max_steps
        if "loss" in logs:
            logs["perplexity"] = convert_to_perplexity(logs["loss"])
            logs["hours"] = self._clock.elapsed / 3600
            steps, seconds = self._clock.lap(self.state.global_step)
            words = self._stream.targets_per_window * self.args.gradient_accumulation_steps
            logs["words_per_second"] = steps * words / seconds
        super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        self.kept_model.save_pretrained(folder)
        self._tokenizer.save_pretrained(folder)
        self._vocabulary.save(folder)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        rank = self.args.process_index
        directions = [pair for pair in self.model.state or () if pair is not None]
        parts = [part.contiguous() for pair in directions for part in pair]
        tensors = dict(zip(STATE_PARTS[: len(parts)], parts, strict=True))
        save_file(tensors, Path(output_dir) / STATE_NAME.format(rank=rank))
        if rank == 0:
            position = self._stream.state_dict() | {
                "num_windows": self.model.num_windows,
                "seconds": self._clock.now(),
                "warmup_steps": self.args.warmup_steps,
                "is_averaged": self._average is not None,
                "num_processes": self.args.world_size,
            }
            (Path(output_dir) / POSITION_NAME).write_text(json.dumps(position), "utf-8")
        # Wait for all processes: Trainer then writes its state, which marks a complete checkpoint.
        self.accelerator.wait_for_everyone()

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            path = Path(checkpoint) / STATE_NAME.format(rank=self.args.process_index)
            tensors = load_file(path)
            parts = [tensors[x].to(self.args.device) for x in STATE_PARTS if x in tensors]
            self.model.state = ElmoState(
                (parts[0], parts[1]), (parts[2], parts[3]) if len(parts) == 4 else None
            )
            position = json.loads((Path(checkpoint) / POSITION_NAME).read_text("utf-8"))
            self.model.num_windows = position["num_windows"]
            self._stream.load_state_dict(position)
            self.restore_early_stopping()
        super()._load_rng_state(checkpoint)

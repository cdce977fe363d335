"""Training of task models with Hugging Face's Trainer."""

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import EarlyStoppingCallback, SchedulerType, TrainerCallback, TrainingArguments
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME
from transformers.trainer_pt_utils import get_length_grouped_indices
from transformers.utils import SAFE_WEIGHTS_NAME

from hf_elmo.model_card import CARD_FILE
from hf_elmo.training.checkpoints import TRAINED_NAME, CheckpointingTrainer, list_random_states
from hf_elmo.training.time_bound import TimeBound

from .card import have_same_text
from .layers.trained_vectors import TrainedVectors
from .modeling import ElmoTaskModel
from .task import Recipe, Task, predict
from .task_inputs import WordInputs

logger = logging.getLogger(__name__)
ADADELTA_RHO = 0.95
ADAM_BETAS = (0.9, 0.999)
SCHEDULES = {
    "constant": SchedulerType.CONSTANT,
    "linear": SchedulerType.LINEAR,
    "halved": SchedulerType.REDUCE_ON_PLATEAU,
}


def make_arguments(
    task: Task[Any, Any], recipe: Recipe, output: Path, **options: Any
) -> TrainingArguments:
    """Make Trainer's arguments for a recipe, with a score and a checkpoint after each epoch.

    Args:
        task: The task.
        recipe: Settings of the training run.
        output: Folder of checkpoints and of the best model.
        **options: Trainer's arguments to add or to override.
    """
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": recipe.batch_size,
        "per_device_eval_batch_size": recipe.batch_size,
        "num_train_epochs": recipe.num_epochs,
        "learning_rate": recipe.learning_rate,
        "max_grad_norm": recipe.max_gradient_norm,
        "lr_scheduler_type": SCHEDULES[recipe.schedule],
        "weight_decay": 0.0,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "logging_nan_inf_filter": False,  # or a loss of NaN would be logged as 0
        "save_total_limit": 2,  # the best checkpoint and the last
        "load_best_model_at_end": True,
        "metric_for_best_model": f"eval_{task.metric}",
        "greater_is_better": True,
        "remove_unused_columns": False,
        "ddp_broadcast_buffers": False,  # they do not change in training
        "report_to": "none",
        "dataloader_pin_memory": torch.cuda.is_available(),
        "use_cpu": not torch.cuda.is_available(),  # as in `find_device`
    }
    if recipe.schedule == "halved":
        halving = {"mode": "max", "factor": 0.5, "patience": recipe.halving_patience}
        arguments["lr_scheduler_kwargs"] = halving
    return TrainingArguments(output_dir=str(output), **{**arguments, **options})


class TaskTrainer(CheckpointingTrainer[ElmoTaskModel]):
    """Train a task model; keep the model with the best score by the task's metric.

    Args:
        task: The task.
        model: The task's model.
        args: Trainer's arguments, as `make_arguments` makes them.
        recipe: Settings of the training run.
        inputs: Makes the model's inputs.
        train: Training examples.
        dev: Examples to choose the best model by.
        callbacks: Further callbacks.
    """

    model: ElmoTaskModel

    def __init__(
        self,
        task: Task[Any, Any],
        model: ElmoTaskModel,
        args: TrainingArguments,
        *,
        recipe: Recipe,
        inputs: WordInputs,
        train: Sequence[Any],
        dev: Sequence[Any],
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        self._task, self._recipe, self._inputs = task, recipe, inputs
        self._train, self._dev = train, dev
        if model.config.static_size and model.static_vectors.weight.requires_grad:
            texts = chain.from_iterable(map(task.texts, train))
            model.static_vectors = TrainedVectors(model.static_vectors, inputs.find_rows(texts))
        super().__init__(
            model,
            args,
            data_collator=self._collate,
            train_dataset=train,
            eval_dataset=dev,
            callbacks=[EarlyStoppingCallback(recipe.patience), *callbacks],
            trained=model,
            ema=recipe.average,
        )
        if recipe.max_gradient is not None:
            _bound_gradients(model, recipe.max_gradient)

    def list_files(self, checkpoint: Path) -> list[str]:
        trained = [] if self._average is None else [TRAINED_NAME]
        states = [
            OPTIMIZER_NAME,
            SCHEDULER_NAME,
            *list_random_states(checkpoint, self.args.world_size),
        ]
        return [SAFE_WEIGHTS_NAME, *states, *trained]

    def restore_position(self, checkpoint: Path) -> bool:
        bounds = [x for x in self.callback_handler.callbacks if isinstance(x, TimeBound)]
        is_complete = (self.state.epoch or 0.0) >= self.args.num_train_epochs
        return is_complete or any(bound.is_used_up() for bound in bounds)

    def _collate(self, examples: Sequence[Any]) -> dict[str, Tensor]:
        batch = self._task.make_batch(examples, self._inputs)
        return batch | self._task.label(examples, self.model.config)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        lengths = [self._task.count_words(example) for example in self._train]
        return LengthSampler(lengths, self.args.train_batch_size, self.args.seed)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create the recipe's optimiser."""
        if self.optimizer is None:
            weights = [weight for weight in self.model.parameters() if weight.requires_grad]
            rate = self.args.learning_rate
            if self._recipe.optimizer == "adadelta":
                self.optimizer = torch.optim.Adadelta(weights, lr=rate, rho=ADADELTA_RHO)
            else:
                self.optimizer = torch.optim.Adam(weights, lr=rate, betas=ADAM_BETAS, fused=True)
        return self.optimizer

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        other = (
            f"{checkpoint} is of another model, or of an older version, which trained other "
            "weights. Start a new run with another --output."
        )
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except ValueError as error:  # another number of weights
            raise ValueError(f"{error}: {other}") from error
        for weight, state in self.optimizer.state.items() if self.optimizer else ():
            for x in state.values():
                if torch.is_tensor(x) and x.ndim and x.shape != weight.shape:  # a step has no axis
                    raise ValueError(
                        f"Expected a state of the optimiser for a weight of {tuple(weight.shape)}, "
                        f"got {tuple(x.shape)}. {other}"
                    )

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Score the model on the dev examples; every process scores all of them."""
        model = self.kept_model
        size = self.args.per_device_eval_batch_size
        found = predict(self._task, model, self._inputs, self._dev, batch_size=size)
        model.config.scores = self._task.score(self._dev, found)
        return self.report({f"eval_{name}": x for name, x in model.config.scores.items()})

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        card = folder / CARD_FILE
        if card.exists():
            new = self.kept_model.make_card(name=folder.resolve().name)
            if have_same_text(card.read_text("utf-8", errors="replace"), new):
                card.unlink()  # it has old scores
            else:
                logger.warning("Kept %s, which was edited. Its scores may be old.", card)
        self.kept_model.save_pretrained(folder)
        self._inputs.save(folder)


class CacheFilling(TrainerCallback):
    """Let the biLM read all sentences of a run before its first step.

    Args:
        inputs: Makes the model's inputs, and has the cache.
        sentences: All sentences of the run.
    """

    def __init__(self, inputs: WordInputs, sentences: Sequence[Sequence[str]]) -> None:
        self._inputs, self._sentences = inputs, sentences

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Fill the cache; a run that is at its end does not begin."""
        self._inputs.fill(self._sentences)


class LengthSampler(Sampler[int]):
    """Shuffle examples differently in each epoch; a batch has examples of similar length.

    A batch that is not full comes last, because it would shift the batches after it.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self._lengths, self._batch_size, self._seed = list(lengths), batch_size, seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, which determines the order of its examples."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch)
        indices = get_length_grouped_indices(self._lengths, self._batch_size, generator=generator)
        batches = torch.tensor(indices).split(self._batch_size)
        num_full = len(indices) // self._batch_size
        order = torch.randperm(num_full, generator=generator).tolist()
        for place in [*order, *range(num_full, len(batches))]:
            yield from batches[place].tolist()


def _bound_gradients(model: nn.Module, bound: float) -> None:
    """Clamp each gradient value to `[-bound, bound]` when the gradient is computed."""
    for weight in model.parameters():
        if weight.requires_grad:
            weight.register_hook(lambda gradient: gradient.clamp(-bound, bound))

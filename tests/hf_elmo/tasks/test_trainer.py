"""Training of task models."""

import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import TrainerCallback, set_seed

from hf_elmo import ElmoTokenizer
from hf_elmo.inference.layer_cache import LayerCache
from hf_elmo.tasks import trainer as trainer_module
from hf_elmo.tasks.labels import Span
from hf_elmo.tasks.readers import TaggedSentence
from hf_elmo.tasks.task import Recipe
from hf_elmo.tasks.task_inputs import WordInputs
from hf_elmo.tasks.trainer import LengthSampler, TaskTrainer, make_arguments
from hf_elmo.training.checkpoints import TRAINED_NAME, CheckpointingTrainer

EXAMPLES = [
    TaggedSentence(["w"] * row + ["Cat"], [Span("A", row, row)] if row % 2 else [])
    for row in range(11)
]
STATIC = {"static_vocab_size": 7, "static_size": 3, "trains_static": True}


class Stop(TrainerCallback):
    """Break off, as a killed process would, after an epoch's checkpoint."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.epoch >= self.epoch:
            raise KeyboardInterrupt


def make_trainer(
    make_case: Callable[..., Any],
    folder: Path,
    *callbacks: TrainerCallback,
    fields: dict[str, Any] | None = None,
    **changes: Any,
) -> TaskTrainer:
    set_seed(0)
    case = make_case("ner", **fields or {})
    recipe = Recipe(**{"batch_size": 2, "num_epochs": 3, "patience": 5} | changes)
    words = ["a", "cat", "w", "x", "y", "z"]
    cache = LayerCache(1_000_000)
    inputs = WordInputs(case.model, ElmoTokenizer(), static_words=words, cache=cache)
    inputs.fill([example.words for example in EXAMPLES])
    arguments = make_arguments(case.task, recipe, folder, seed=0, disable_tqdm=True)
    return TaskTrainer(
        case.task,
        case.model,
        arguments,
        recipe=recipe,
        inputs=inputs,
        train=EXAMPLES,
        dev=EXAMPLES[:4],
        callbacks=callbacks,
    )


@pytest.mark.parametrize("average", [None, 0.9])
def test_training_that_is_broken_off_ends_with_the_same_weights(
    average: float | None, make_case: Callable[..., Any], tmp_path: Path
) -> None:
    make = partial(make_trainer, make_case, average=average, fields=STATIC)
    whole = make(tmp_path / "whole")
    whole.train()
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "broken", Stop(2)).train()
    again = make(tmp_path / "broken")
    again.train(resume_from_checkpoint=True)
    assert again.state.log_history[-1]["epoch"] == 3
    names = ["eval_f1", "loss"]
    for entry, other in zip(whole.state.log_history, again.state.log_history, strict=True):
        assert [entry.get(name) for name in names] == [other.get(name) for name in names]
    assert_close(dict(again.model.state_dict()), dict(whole.model.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("average", [None, 0.9])
def test_static_vectors_of_the_training_text_are_trained(
    average: float | None, make_case: Callable[..., Any], tmp_path: Path
) -> None:
    trainer = make_trainer(make_case, tmp_path, average=average, fields=STATIC)
    before = trainer.model.state_dict()["static_vectors.weight"]
    assert trainer.model.static_vectors.weight.shape == (3, 3)  # padding, "cat" and "w"
    trainer.train()
    trainer.save_model()
    model = type(trainer.model).from_pretrained(tmp_path)
    is_trained = (model.static_vectors.weight != before.cpu()).any(dim=1)
    assert is_trained.tolist() == [0, 0, 1, 1, 0, 0, 0]


def test_static_vectors_that_are_frozen_stay_so(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    model = make_trainer(make_case, tmp_path, fields=STATIC | {"trains_static": False}).model
    assert not model.static_vectors.weight.requires_grad


def test_a_run_that_trained_all_static_vectors_is_not_continued(
    make_case: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(trainer_module, "TrainedVectors", lambda vectors, rows: vectors)
        trainer = make_trainer(make_case, tmp_path, Stop(1), fields=STATIC)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    with pytest.raises(ValueError, match=r"weight of \(3, 3\), got \(7, 3\).*new run"):
        make_trainer(make_case, tmp_path, fields=STATIC).train(resume_from_checkpoint=True)


def test_a_run_that_trained_another_number_of_weights_is_not_continued(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    frozen = STATIC | {"trains_static": False}
    with pytest.raises(KeyboardInterrupt):
        make_trainer(make_case, tmp_path, Stop(1), fields=frozen).train()
    with pytest.raises(ValueError, match=r"size of optimizer's group: .*checkpoint-.* new run"):
        make_trainer(make_case, tmp_path, fields=STATIC).train(resume_from_checkpoint=True)


@pytest.mark.parametrize("epoch", [2, 3])
def test_training_that_is_broken_off_ends_as_early(
    make_case: Callable[..., Any], tmp_path: Path, epoch: int
) -> None:
    recipe = {"num_epochs": 9, "patience": 2, "learning_rate": 0.0}  # ends after three epochs
    with pytest.raises(KeyboardInterrupt):
        make_trainer(make_case, tmp_path, Stop(epoch), **recipe).train()
    again = make_trainer(make_case, tmp_path, **recipe)
    again.train(resume_from_checkpoint=True)
    assert again.state.epoch == 3


def test_a_checkpoint_that_is_not_whole_is_passed_over(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_trainer(make_case, tmp_path, Stop(2)).train()
    (tmp_path / "checkpoint-12" / ".writing-checkpoint-12").touch()
    again = make_trainer(make_case, tmp_path)
    with pytest.warns(UserWarning, match=r"Deleting .*checkpoint-12: "):
        again.train(resume_from_checkpoint=True)
    assert again.state.epoch == 3


def test_a_checkpoint_without_the_weights_behind_its_average_is_passed_over(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_trainer(make_case, tmp_path, Stop(2), average=0.9).train()
    (tmp_path / "checkpoint-12" / TRAINED_NAME).unlink()
    again = make_trainer(make_case, tmp_path, average=0.9)
    with pytest.warns(UserWarning, match=rf"Skipping .*checkpoint-12: .*{TRAINED_NAME}"):
        again.train(resume_from_checkpoint=True)
    assert again.state.epoch == 3


def test_a_checkpoint_that_cannot_be_loaded_is_named(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_trainer(make_case, tmp_path, Stop(2)).train()
    with zipfile.ZipFile(tmp_path / "checkpoint-12" / "optimizer.pt", "w") as file:
        file.writestr("archive/data.pkl", b"")
    with pytest.raises(OSError, match=r"load .*checkpoint-12, got: .* delete this folder: --res"):
        make_trainer(make_case, tmp_path).train(resume_from_checkpoint=True)


def test_the_average_of_the_weights_is_what_is_kept(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    seen: list[torch.Tensor] = []

    class Note(TrainerCallback):
        def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
            seen.append(model.crf.transitions.detach().clone())

    trainer = make_trainer(make_case, tmp_path, Note(), num_epochs=1, average=0.9)
    trainer.train()
    expected = seen[0]
    for weights in seen[1:]:
        expected = 0.9 * expected + 0.1 * weights
    assert len(seen) > 2
    assert_close(trainer.model.crf.transitions, expected)


def test_the_best_model_is_kept(
    make_case: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(make_case, tmp_path)
    scores, scored = iter([0.2, 0.4, 0.3, 0.4]), []

    def score(*_: Any) -> dict[str, float]:
        scored.append({name: x.clone() for name, x in trainer.model.state_dict().items()})
        return {"f1": next(scores)}

    monkeypatch.setattr(type(trainer._task), "score", score)
    trainer.train()
    assert_close(dict(trainer.model.state_dict()), scored[1], rtol=0, atol=0)
    assert trainer.evaluate()["eval_f1"] == 0.4
    assert trainer.model.config.scores == {"f1": 0.4}


def test_the_rate_is_halved_when_patience_is_at_its_end(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    recipe = {"num_epochs": 4, "learning_rate": 1e-6, "schedule": "halved"}  # no score changes
    for patience, expected in ((0, 3), (2, 1)):
        trainer = make_trainer(make_case, tmp_path, **recipe, halving_patience=patience)
        trainer.train()
        (rate,) = trainer.lr_scheduler.get_last_lr()
        assert rate == pytest.approx(1e-6 / 2**expected)


def test_the_rate_stays_while_the_score_rises(
    make_case: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(make_case, tmp_path, learning_rate=1e-6, schedule="halved")
    scores = iter([0.1, 0.2, 0.3])
    monkeypatch.setattr(type(trainer._task), "score", lambda *_: {"f1": next(scores)})
    trainer.train()
    assert trainer.lr_scheduler.get_last_lr() == [1e-6]


def test_training_ends_early_without_a_better_score(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    trainer = make_trainer(make_case, tmp_path, num_epochs=9, patience=2, learning_rate=0.0)
    trainer.train()
    assert trainer.state.epoch == 3


@pytest.mark.parametrize("optimizer", ["adam", "adadelta"])
def test_the_recipe_names_the_optimiser(
    optimizer: str, make_case: Callable[..., Any], tmp_path: Path
) -> None:
    trainer = make_trainer(make_case, tmp_path, optimizer=optimizer, learning_rate=0.5)
    made = trainer.create_optimizer()
    assert type(made).__name__.lower() == optimizer
    assert made.param_groups[0]["lr"] == 0.5
    weights = [weight for group in made.param_groups for weight in group["params"]]
    assert all(weight.requires_grad for weight in weights)


def test_adadelta_has_the_rho_of_the_recipe(make_case: Callable[..., Any], tmp_path: Path) -> None:
    made = make_trainer(make_case, tmp_path, optimizer="adadelta").create_optimizer()
    assert made.param_groups[0]["rho"] == 0.95


def test_one_process_uses_one_gpu(make_case: Callable[..., Any], tmp_path: Path) -> None:
    arguments = make_trainer(make_case, tmp_path).args
    assert arguments.use_cpu is not torch.cuda.is_available()
    arguments.eval_strategy, arguments.load_best_model_at_end = "no", False
    arguments._n_gpu = 2  # as on a machine with two, where Trainer would use DataParallel
    model = make_case("ner").model
    CheckpointingTrainer(model, arguments, trained=model, ema=None)
    assert arguments.n_gpu == 1


def test_each_number_of_a_gradient_is_bounded(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    trainer = make_trainer(make_case, tmp_path, max_gradient=0.001)
    batch = trainer._prepare_inputs(trainer._collate(EXAMPLES))
    trainer.model.train()(**batch).loss.backward()
    gradients = [w.grad for w in trainer.model.parameters() if w.grad is not None]
    assert max(float(gradient.abs().max()) for gradient in gradients) == pytest.approx(0.001)


def test_the_learning_rate_is_halved_without_a_better_score(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    trainer = make_trainer(make_case, tmp_path, schedule="halved", learning_rate=1e-6)
    trainer.train()
    rates = [e["learning_rate"] for e in trainer.state.log_history if "learning_rate" in e]
    assert rates == [1e-6, 1e-6, 5e-7]


def test_the_learning_rate_falls_in_a_line_over_all_epochs(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    trainer = make_trainer(make_case, tmp_path, schedule="linear", learning_rate=0.3)
    trainer.train()
    rates = [e["learning_rate"] for e in trainer.state.log_history if "learning_rate" in e]
    assert rates == pytest.approx([0.2, 0.1, 0.0], abs=0.02)  # of an epoch's last step


def test_an_epoch_has_an_order_of_its_own_and_batches_of_like_length() -> None:
    lengths = torch.randint(1, 100, (1001,), generator=torch.Generator().manual_seed(0)).tolist()
    sampler = LengthSampler(lengths, 4, seed=1)
    first = list(sampler)
    assert list(sampler) == first
    assert sorted(first) == list(range(1001))
    spreads = [
        max(lengths[row] for row in batch) - min(lengths[row] for row in batch)
        for batch in (first[start : start + 4] for start in range(0, 1001, 4))
    ]
    assert max(spreads) < 10  # of 99
    sampler.set_epoch(1)
    assert list(sampler) != first


def test_the_order_of_the_examples_depends_on_the_seed(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    trainer = make_trainer(make_case, tmp_path)
    first = list(trainer._get_train_sampler())
    trainer.args.seed = 1
    assert list(trainer._get_train_sampler()) != first


def test_training_that_diverges_is_an_error(make_case: Callable[..., Any], tmp_path: Path) -> None:
    trainer = make_trainer(make_case, tmp_path, fields=STATIC, learning_rate=1e30)
    with pytest.raises(ValueError, match=r"Expected finite weights after step 6, .* --output.$"):
        trainer.train()
    assert not list(tmp_path.glob("checkpoint-*"))

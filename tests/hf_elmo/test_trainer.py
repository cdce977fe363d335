"""Fine-tuning heads with the Trainer of transformers, on a CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers import DataCollatorForTokenClassification, Trainer, TrainingArguments

from hf_elmo import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModelOutput,
    ElmoPreTrainedModel,
    ElmoTokenizer,
)

SENTENCES = [
    ["A", "bank", "."],
    ["No", "river", "bank", "raised", "its", "rates", "."],
    [],
    ["Banks", "do", "that", "."],
]
TARGETS: dict[type[ElmoPreTrainedModel], Any] = {
    ElmoForTokenClassification: [[int("a" in word) for word in words] for words in SENTENCES],
    ElmoForSequenceClassification: [0, 1, 0, 1],
    ElmoForPreTraining: [[2 + len(word) for word in words] for words in SENTENCES],
}


def make_examples(model: ElmoPreTrainedModel) -> list[dict[str, Any]]:
    """Sentences in ids, with labels."""
    encoded = ElmoTokenizer()(SENTENCES, is_split_into_words=True)
    labels = TARGETS[type(model)]
    return [
        {"input_ids": ids, "labels": label}
        for ids, label in zip(encoded["input_ids"], labels, strict=True)
    ]


def make_model(head: type[ElmoPreTrainedModel], config: ElmoConfig) -> ElmoPreTrainedModel:
    """A head without dropout, which would differ between runs that are to be equal."""
    torch.manual_seed(0)
    changes = {"vocab_size": 12, "dropout": 0.0, "classifier_dropout": 0.0, "num_labels": 2}
    return head(ElmoConfig(**{**config.to_dict(), **changes}))


def make_trainer(model: ElmoPreTrainedModel, folder: Path, **options: Any) -> Trainer:
    """A Trainer that writes next to nothing."""
    arguments = {
        "per_device_train_batch_size": 4,
        "learning_rate": 0.1,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "train_sampling_strategy": "sequential",
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    examples = make_examples(model)
    return Trainer(
        model,
        TrainingArguments(str(folder), **{**arguments, **options}),
        train_dataset=examples,
        eval_dataset=examples,
        data_collator=DataCollatorForTokenClassification(ElmoTokenizer())
        if not isinstance(model, ElmoForSequenceClassification)
        else lambda batch: ElmoTokenizer().pad(batch, return_tensors="pt"),
    )


@pytest.mark.parametrize("head", TARGETS)
def test_trainer_makes_the_loss_fall(
    tiny_config: ElmoConfig, tmp_path: Path, head: type[ElmoPreTrainedModel]
) -> None:
    model = make_model(head, tiny_config)
    before = {name: value.clone() for name, value in model.elmo.state_dict().items()}
    trainer = make_trainer(model, tmp_path, max_steps=30, optim="adamw_torch")
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.7 * losses[0]
    if head is not ElmoForPreTraining:
        assert_close(model.elmo.state_dict(), before, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyTorch's own: it looks at every attribute
def test_trainer_can_compile(tiny_config: ElmoConfig, tmp_path: Path) -> None:
    losses = []
    for options in ({}, {"torch_compile": True, "torch_compile_backend": "eager"}):
        trainer = make_trainer(
            make_model(ElmoForTokenClassification, tiny_config), tmp_path, max_steps=2, **options
        )
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[1] == pytest.approx(losses[0])


@pytest.mark.parametrize("head", [ElmoForTokenClassification, ElmoForSequenceClassification])
def test_accumulated_gradients_are_those_of_one_batch(
    tiny_config: ElmoConfig, tmp_path: Path, head: type[ElmoPreTrainedModel]
) -> None:
    states, losses = [], []
    config = ElmoConfig(**{**tiny_config.to_dict(), "mix_l2": 0.1, "mix_weights": [1.0, 0.0, -1.0]})
    for options in (
        {"per_device_train_batch_size": 4},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
    ):
        model = make_model(head, config)
        trainer = make_trainer(model, tmp_path, max_steps=1, **options)
        trainer.train()
        states.append(model.state_dict())
        losses.append(trainer.state.log_history[0]["loss"])
    assert_close(states[1], states[0])
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)


def test_accumulated_losses_of_the_language_model_are_their_mean(
    tiny_config: ElmoConfig, tmp_path: Path
) -> None:  # not over the words, as Trainer does not count </S> and <S>
    losses = []
    for accumulation in (1, 4):
        model = make_model(ElmoForPreTraining, tiny_config)
        trainer = make_trainer(
            model,
            tmp_path,
            max_steps=1 if accumulation == 4 else 4,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=accumulation,
            learning_rate=0.0,
        )
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[1] == pytest.approx([np.mean(losses[0])], abs=1e-4)


@pytest.mark.parametrize(
    ("head", "shape"),
    [(ElmoForTokenClassification, (4, 7, 2)), (ElmoForSequenceClassification, (4, 2))],
)
def test_evaluation_gathers_logits_alone(
    tiny_config: ElmoConfig,
    tmp_path: Path,
    head: type[ElmoPreTrainedModel],
    shape: tuple[int, ...],
) -> None:
    model = make_model(head, tiny_config)
    model.config.output_hidden_states = True
    trainer = make_trainer(model, tmp_path)
    predictions = trainer.predict(trainer.eval_dataset).predictions
    assert isinstance(predictions, np.ndarray)
    assert predictions.shape == shape


def test_all_but_the_logits_is_ignored_at_inference() -> None:
    names = set(ElmoModelOutput.__dataclass_fields__) - {"state"}  # the state is no key
    assert set(ElmoConfig.keys_to_ignore_at_inference) == names

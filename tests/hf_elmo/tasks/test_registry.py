"""Loading task models by transformers' Auto classes and by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from hf_elmo import ElmoTokenizer
from hf_elmo.tasks import load_task_model
from hf_elmo.tasks.registry import make_inputs
from hf_elmo.tasks.task import predict

AUTO_CLASSES = {
    "ner": AutoModelForTokenClassification,
    "srl": AutoModelForTokenClassification,
    "sentiment": AutoModelForSequenceClassification,
    "entailment": AutoModelForSequenceClassification,
    "squad": AutoModelForQuestionAnswering,
}


@pytest.mark.parametrize("name", AUTO_CLASSES)
def test_auto_classes_load_a_task_model(
    name: str, make_case: Callable[..., Any], tmp_path: Path
) -> None:
    case = make_case(name)
    case.model.save_pretrained(tmp_path)
    case.inputs.save(tmp_path)
    assert type(AUTO_CLASSES[name].from_pretrained(tmp_path)) is type(case.model)
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is ElmoTokenizer


def test_a_folder_that_is_not_there_is_refused_with_what_makes_one() -> None:
    with pytest.raises(OSError, match=r"no such folder.* python -m hf_elmo train TASK"):
        load_task_model("no-folder")


def test_all_files_come_from_where_the_weights_do(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    case = make_case("ner", static_vocab_size=5, static_size=4)
    case.model.save_pretrained(tmp_path / "inner")
    case.inputs.save(tmp_path / "inner")
    task, model, inputs = load_task_model(str(tmp_path), subfolder="inner")
    expected = predict(task, case.model, case.inputs, case.examples)
    assert predict(task, model, inputs, case.examples) == expected


def test_words_of_static_vectors_are_not_guessed(make_case: Callable[..., Any]) -> None:
    case = make_case("ner", static_vocab_size=5, static_size=4)
    with pytest.raises(ValueError, match="Expected a model that was loaded by its name"):
        make_inputs(case.model, case.inputs.tokenizer)


def test_a_folder_tells_its_task(
    task_name: str, make_case: Callable[..., Any], tmp_path: Path
) -> None:
    case = make_case(task_name, static_vocab_size=5, static_size=4)
    case.model.save_pretrained(tmp_path)
    case.inputs.save(tmp_path)
    task, model, inputs = load_task_model(str(tmp_path))
    assert task is case.task
    expected = predict(task, case.model, case.inputs, case.examples)
    assert predict(task, model, inputs, case.examples) == expected

"""What a task makes of its examples."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from task_cases import EXAMPLES

from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer
from hf_elmo.tasks import TASKS
from hf_elmo.tasks.modeling import load_bilm
from hf_elmo.tasks.readers import Document, Frame, LabelledSentence, TaggedSentence
from hf_elmo.tasks.task import batch_examples, describe_labels, predict
from hf_elmo.tasks.task_inputs import WordInputs


def test_batches_hold_examples_of_like_length() -> None:
    batches = list(batch_examples("abcde", [3, 1, 2, 9, 1], 2))
    assert batches == [[1, 4], [2, 0], [3]]


def test_a_batch_has_at_least_one_example(make_case: Callable[..., Any]) -> None:
    case = make_case("sentiment")
    with pytest.raises(ValueError, match="Expected a batch size of at least 1, got -1"):
        predict(case.task, case.model, case.inputs, case.examples, batch_size=-1)


def test_predictions_come_in_the_order_of_the_examples(
    task_name: str, make_case: Callable[..., Any]
) -> None:
    case = make_case(task_name)
    forward = predict(case.task, case.model, case.inputs, case.examples, batch_size=1)
    case.model.train()
    backward = predict(case.task, case.model, case.inputs, case.examples[::-1])
    assert backward == forward[::-1]
    assert case.model.training


def test_another_model_predicts_with_its_own_bilm(make_case: Callable[..., Any]) -> None:
    case = make_case("sentiment")
    other = copy.deepcopy(case.model)
    with torch.no_grad():
        for weight in other.elmo.parameters():
            weight.neg_()
    found = predict(case.task, other, case.inputs, case.examples, find=other.rank)
    inputs = WordInputs(other, case.inputs.tokenizer)
    assert found == predict(case.task, other, inputs, case.examples, find=other.rank)
    assert found != predict(case.task, case.model, case.inputs, case.examples, find=case.model.rank)


def test_predictions_pass_through_hooks_of_the_bilm(make_case: Callable[..., Any]) -> None:
    case = make_case("sentiment")
    calls: list[object] = []
    case.model.elmo.register_forward_hook(lambda *args: calls.append(args))
    predict(case.task, case.model, case.inputs, case.examples)
    assert calls


def test_what_the_caller_sets_goes_before_the_preset(make_case: Callable[..., Any]) -> None:
    config = make_case("ner", "paper", lstm_size=7, elmo={"mix_layers": "top"}).model.config
    assert (config.lstm_size, config.num_char_filters) == (7, 128)
    assert (config.bilm.mix_layers, config.bilm.mix_l2) == ("top", 0.1)


def test_the_bilm_fields_that_the_caller_sets_go_before_those_of_the_preset(
    make_case: Callable[..., Any],
) -> None:
    assert make_case("ner", "paper", elmo={"mix_l2": 0.3}).model.config.bilm.mix_l2 == 0.3


@pytest.mark.parametrize(
    ("word", "max_characters", "max_chars"),
    [("bank", 50, 16), ("Bänke", 50, 19), ("नदी", 50, 48), ("नदी", 30, 30), ("नदी", 10, 16)],
)
def test_a_task_reads_more_bytes_of_a_script_with_more_bytes_per_letter(
    word: str, max_characters: int, max_chars: int
) -> None:
    bilm = ElmoConfig(max_characters_per_token=max_characters)
    example = EXAMPLES["squad"][0]._replace(words=[word], question=[word])
    assert TASKS["squad"].make_config("cpu", [example], bilm).max_chars == max_chars


@pytest.mark.parametrize("name", ["ner", "squad", "coref"])
def test_a_task_over_a_bilm_of_words_reads_no_characters(name: str) -> None:
    words = ["<S>", "</S>", "<UNK>", "cat"]
    sizes = {"word_vocab_size": 5, "word_embedding_size": 4, "cell_size": 8, "projection_size": 4}
    ends = {"sentence_start_word_id": 1, "sentence_end_word_id": 2}
    bilm = ElmoModel(ElmoConfig(char_embedding_size=0, **sizes, **ends)).eval()
    task, examples = TASKS[name], EXAMPLES[name]
    config = task.make_config("cpu", examples, bilm.config)
    assert (config.char_size, config.num_char_filters) == (0, 0)
    model = task.model(config).eval()
    load_bilm(model, bilm)
    tokenizer = ElmoTokenizer.from_config(bilm.config, word_vocab=words)
    assert len(predict(task, model, WordInputs(model, tokenizer), examples)) == len(examples)


def test_labels_are_numbered() -> None:
    assert describe_labels(["b", "a", "b"]) == {
        "id2label": {0: "b", 1: "a"},
        "label2id": {"b": 0, "a": 1},
    }


def test_examples_with_nothing_to_find_are_refused(make_case: Callable[..., Any]) -> None:
    for name, example in (
        ("ner", TaggedSentence(["a", "b"], [])),
        ("coref", Document("x", [["a", "b"]], [])),
        ("srl", Frame(["a", "b"], 0, [])),
    ):
        case = make_case(name)
        case.task.check([example, case.examples[0]], Path("x"), case.model.config)
        with pytest.raises(ValueError, match=r"x: expected something to find, .* in 2 examples"):
            case.task.check([example] * 2, Path("x"), case.model.config)


def test_labels_that_a_classifier_does_not_have_are_refused(make_case: Callable[..., Any]) -> None:
    case = make_case("sentiment")
    case.task.check(case.examples, Path("x"), case.model.config)
    with pytest.raises(ValueError, match=r"x: expected the labels 0, 3, found '7'\."):
        case.task.check([LabelledSentence(["a"], "7")], Path("x"), case.model.config)


def test_every_task_has_both_presets() -> None:
    assert all(set(task.presets) == {"paper", "cpu"} for task in TASKS.values())

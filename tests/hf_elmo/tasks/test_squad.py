"""The reader of questions and passages."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from hf_elmo.tasks.squad import find_best_spans, read_questions

PAPER = {"static_vocab_size": 5, "static_size": 300}


def count(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def count_gru(width: int, size: int) -> int:
    return 2 * 3 * size * (width + size + 2)


def test_the_paper_s_preset_has_its_shapes(make_case: Callable[..., Any]) -> None:
    model = make_case("squad", "paper", elmo_at="none", **PAPER).model
    assert count(model.encoder) == count_gru(300 + 100, 90)
    assert model.merge.weight.shape == (180, 4 * 180)
    assert count(model.residual_encoder) == count_gru(180, 90)
    assert model.residual_merge.weight.shape == (180, 3 * 180)
    assert count(model.start_encoder) == count_gru(180, 90)
    assert count(model.end_encoder) == count_gru(360, 90)
    assert count(model.attention) == 3 * 180
    assert count(model.self_attention) == 3 * 180 + 1


def test_elmo_at_the_output_comes_before_the_attention(make_case: Callable[..., Any]) -> None:
    model = make_case("squad", "paper", **PAPER).model
    assert model.config.elmo_at == "both"
    assert model.merge.weight.shape == (180, 4 * (180 + model.config.bilm.hidden_size))


def test_the_loss_is_the_sum_of_both_bounds(make_case: Callable[..., Any]) -> None:
    case = make_case("squad")
    batch = case.make_batch([0, 1])
    out = case.model(**batch)
    starts = F.cross_entropy(out.start_logits, torch.tensor([1, 1]))
    ends = F.cross_entropy(out.end_logits, torch.tensor([2, 1]))
    assert_close(out.loss, starts + ends)


def test_an_answer_is_as_probable_as_its_first_and_its_last_word(
    make_case: Callable[..., Any],
) -> None:
    case = make_case("squad")
    batch = case.make_batch([0, 1])
    with torch.no_grad():
        out, ranked = case.model(**batch), case.model.rank(**batch)
    starts, ends = out.start_logits.softmax(1), out.end_logits.softmax(1)
    for row, (start, end, score) in enumerate(ranked):
        assert score == pytest.approx(float(starts[row, start] * ends[row, end]))


def test_sums_of_scores_in_half_precision_are_not_rounded() -> None:
    starts, ends = torch.tensor([[20.0, 0.0]]), torch.tensor([[1.0, 1.0625]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    found = find_best_spans(starts.bfloat16(), ends.bfloat16(), mask, 2)
    assert [int(x) for x in found] == [0, 1]


def write(tmp_path: Path, answers: list[dict[str, Any]]) -> Path:
    question = {"id": "q", "question": "Who sat?", "answers": answers}
    paragraph = {"context": "The cat's friend sat.", "qas": [question]}
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}))
    return path


def test_questions_are_read_with_the_words_of_their_answers(tmp_path: Path) -> None:
    unsure = {"text": "cat", "answer_start": 4, "ambiguous": True}
    path = write(tmp_path, [unsure, {"text": "friend", "answer_start": 10}])
    (question,) = read_questions(path)
    assert question.words == ["The", "cat", "'s", "friend", "sat", "."]
    assert question.question == ["Who", "sat", "?"]
    assert question.answers == ["cat", "friend"]
    assert question.span == (3, 3)
    assert question.cut((1, 3)) == "cat's friend"


def test_a_language_without_spaces_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read_questions(write(tmp_path, [{"text": "friend sat", "answer_start": 10}]), "train")
    assert not caplog.text
    read_questions(write(tmp_path, [{"text": "rien", "answer_start": 11}]), "train")
    assert "1 of 1 answers begin or end within a word" in caplog.text


def test_training_leaves_out_what_has_no_sure_place(tmp_path: Path) -> None:
    path = write(tmp_path, [{"text": "cat", "answer_start": 4, "ambiguous": True}])
    assert len(read_questions(path)) == 1
    with pytest.raises(ValueError, match="expected questions, found none"):
        read_questions(path, "train")


def test_questions_without_an_answer_are_for_prediction_alone(tmp_path: Path) -> None:
    path = write(tmp_path, [])
    for use in ("score", "train"):
        with pytest.raises(ValueError, match="question q: expected an answer, found none"):
            read_questions(path, use)
    (question,) = read_questions(path, "predict")
    assert question.question == ["Who", "sat", "?"]


def test_answers_are_not_read_for_prediction(tmp_path: Path) -> None:
    path = write(tmp_path, [{"text": "cat", "answer_start": 99}])
    (question,) = read_questions(path, "predict")
    assert question.answers == []


def test_a_question_about_nothing_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [])
    path.write_text(path.read_text().replace("The cat's friend sat.", " "))
    with pytest.raises(ValueError, match="question q: expected a paragraph with words, found ' '"):
        read_questions(path, "predict")


def test_an_empty_question_and_an_id_that_is_there_twice_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [])
    text = path.read_text()
    path.write_text(text.replace("Who sat?", " "))
    with pytest.raises(ValueError, match="question q: expected a question with words, found ' '"):
        read_questions(path, "predict")
    data = json.loads(text)
    path.write_text(json.dumps({"data": 2 * data["data"]}))
    with pytest.raises(ValueError, match="expected each id once, found 'q' twice"):
        read_questions(path, "predict")


@pytest.mark.parametrize("start", [0, -1])
def test_an_answer_without_words_is_refused(start: int, tmp_path: Path) -> None:
    path = write(tmp_path, [{"text": "", "answer_start": start}])
    with pytest.raises(ValueError, match="question q: expected answers with words, found ''"):
        read_questions(path)


def test_an_answer_elsewhere_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [{"text": "cat", "answer_start": 5}])
    with pytest.raises(ValueError, match="question q: expected 'cat' at 5, found \"at'\""):
        read_questions(path)


def test_an_answer_is_not_counted_from_the_end(tmp_path: Path) -> None:
    path = write(tmp_path, [{"text": "sat", "answer_start": -4}])
    with pytest.raises(ValueError, match="question q: expected 'sat' at -4"):
        read_questions(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ('{"data": [{"title": "t"}]}', "missed 'paragraphs'"),
        ("[]", "expected SQuAD's data"),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": [5]}]}]}', "expected SQuAD's data"),
    ],
)
def test_other_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "squad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_questions(path)

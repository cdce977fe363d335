"""The commands that train, test and predict."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

from hf_elmo import ElmoConfig, ElmoForTokenClassification, ElmoTokenizer
from hf_elmo.__main__ import app as APP
from hf_elmo.tasks import commands, load_task_model
from hf_elmo.tasks.task_inputs import WordInputs
from hf_elmo.training.time_bound import read_seconds

TEXT = "The\tO\nold\tB-A\ncat\tI-A\n\nNo\tO\nbank\tB-B\n\nA\tO\ncat\tB-A\n"


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(APP, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.conll"
    path.write_text(TEXT)
    return path


def train(data: Path, output: Path, folder: Path, *options: str | Path) -> str:
    common = ["--train", data, "--dev", data, "--output", output, "--model", folder]
    return run("train", "ner", *common, "--epochs", "2", "--cache-bytes", "100000", *options)


def test_a_model_is_trained_tested_and_predicts(
    data: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("cat 1 2\nold 3 4\n")
    output = tmp_path / "my-ner"
    printed = train(data, output, tiny_folder, "--vectors", vectors, "--elmo", "both")
    scores = json.loads(printed.splitlines()[-1])
    tested = json.loads(run("test", output, data))
    assert tested == scores
    assert f"| f1 | {tested['f1']:.4f} |" in (output / "README.md").read_text()
    found = tmp_path / "found.jsonl"
    run("predict", output, data, found)
    lines = [json.loads(line) for line in found.read_text().splitlines()]
    assert lines[0]["words"] == ["The", "old", "cat"]
    assert all("entities" in line for line in lines)


@pytest.mark.parametrize("is_edited", [True, False])
def test_a_card_gets_new_scores_unless_it_was_edited(
    is_edited: bool, data: Path, tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    card = tmp_path / "my-ner" / "README.md"
    train(data, card.parent, tiny_folder, "--max-minutes", "0", "--batch-size", "1")
    old = re.sub(r"\| \d\.\d{4} \|", "| 0.1234 |", card.read_text())
    card.write_text(old + "My notes.\n" * is_edited)
    options = ["--max-minutes", "9", "--batch-size", "1", "--resume"]
    train(data, card.parent, tiny_folder, *options)
    assert ("My notes" in card.read_text()) == ("0.1234" in card.read_text()) == is_edited
    assert ("which was edited" in caplog.text) == is_edited


def test_static_vectors_of_any_scale_come_in_alike(
    data: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    for scale in (0.5, 0.005):
        vectors = tmp_path / f"{scale}.txt"
        vectors.write_text(f"cat {scale} {2 * scale}\nold {3 * scale} {4 * scale}\n")
        options = ["--vectors", vectors, "--learning-rate", "1e-30"]
        train(data, tmp_path / str(scale), tiny_folder, *options)
        _, model, _ = load_task_model(str(tmp_path / str(scale)))
        table = model.static_vectors.weight
        assert_close(table, torch.tensor([[0, 0], [1, 2], [3, 4]]) / 7.5**0.5)


def test_training_goes_on_only_where_it_is_asked_to(
    data: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "my-ner"
    train(data, output, tiny_folder)
    arguments = ["train", "ner", "--train", data, "--dev", data, "--output", output]
    result = CliRunner().invoke(APP, [str(argument) for argument in arguments])
    assert result.exit_code == 1
    assert "holds checkpoints of a training. Go on with --resume" in result.output
    train(data, output, tiny_folder, "--resume")


def test_a_resumed_run_without_a_checkpoint_says_that_it_starts_anew(
    data: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    common = ["--train", data, "--dev", data, "--output", tmp_path / "new", "--epochs", "1"]
    arguments = ["train", "ner", *common, "--model", tiny_folder, "--resume"]
    result = CliRunner().invoke(APP, [str(argument) for argument in arguments])
    assert result.exit_code == 0
    assert "Starting a new run: there is no checkpoint in" in result.stderr


def test_a_model_that_mixes_one_layer_is_tested(
    data: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    printed = train(data, tmp_path / "my-ner", tiny_folder, "--mix-layers", "top")
    scores = json.loads(printed.splitlines()[-1])
    assert json.loads(run("test", tmp_path / "my-ner", data)) == scores


def test_the_mix_of_a_task_model_is_not_taken_over_with_its_bilm(
    data: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    other, output = tmp_path / "other", tmp_path / "my-ner"
    options = ["--mix-layers", "words", "--layer-norm", "sentence", "--mix-l2", "0"]
    train(data, other, tiny_folder, *options)
    train(data, output, other)
    config = load_task_model(str(output))[1].config.bilm
    assert (config.mix_layers, config.mix_layer_norm, config.mix_l2) == ("all", "none", 0.1)


def test_the_mix_of_a_tagger_is_not_taken_over_with_its_bilm(
    data: Path, tiny_config: ElmoConfig, tmp_path: Path
) -> None:
    tiny_config.mix_layers, tiny_config.mix_layer_norm = "top", "batch"
    ElmoForTokenClassification(tiny_config).save_pretrained(tmp_path / "tagger")
    ElmoTokenizer.from_config(tiny_config).save_pretrained(tmp_path / "tagger")
    train(data, tmp_path / "my-ner", tmp_path / "tagger")
    config = load_task_model(str(tmp_path / "my-ner"))[1].config.bilm
    assert (config.mix_layers, config.mix_layer_norm) == ("all", "none")


def test_a_run_ends_by_its_patience_and_halves_its_rate_until_then(
    data: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    options = ["--schedule", "halved", "--patience", "2", "--epochs", "9"]
    train(data, tmp_path / "my-ner", tiny_folder, *options, "--learning-rate", "1e-30")
    last = max((tmp_path / "my-ner").glob("checkpoint-*"), key=lambda path: path.stat().st_mtime)
    assert json.loads((last / "trainer_state.json").read_text())["epoch"] == 3
    assert "num_bad_epochs" in torch.load(last / "scheduler.pt")  # of the halved rate


def refuse_to_train(data: Path, output: Path, folder: Path, *options: str) -> str:
    common = ["--train", data, "--dev", data, "--output", output, "--model", folder, "--epochs", 2]
    arguments = [str(argument) for argument in ["train", "ner", *common, *options]]
    result = CliRunner().invoke(APP, arguments)
    assert result.exit_code == 1
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--learning-rate", "0.5"], "Expected no --learning-rate, as when the run in"),
        (["--elmo", "output"], "got --elmo output. Give the same options to resume it, or another"),
        (["--seed", "2"], "Expected --seed 1"),
    ],
)
def test_a_training_goes_on_with_its_own_options_alone(
    options: list[str], message: str, data: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    train(data, tmp_path / "my-ner", tiny_folder)
    printed = refuse_to_train(data, tmp_path / "my-ner", tiny_folder, "--resume", *options)
    assert message in printed
    train(data, tmp_path / "my-ner", tiny_folder, "--resume", "--max-minutes", "9")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--elmo", "none", "--mix-layers", "top"],
            "Expected no --mix-layers together with --elmo",
        ),
        (["--elmo", "none", "--train-bilm"], "Expected no --train-bilm together with --elmo none."),
        (["--elmo", "none", "--mix-l2", "0"], "Expected no --mix-l2 together with --elmo none."),
        (["--fixed-mix", "--mix-l2", "0.5"], "Expected no --mix-l2 with --fixed-mix or"),
        (["--mix-layers", "top", "--mix-l2", "1"], "Expected no --mix-l2 with --fixed-mix or"),
        (["--max-vectors", "3"], "Expected --vectors where --max-vectors is given."),
        (["--learning-rate", "0"], "Expected --learning-rate above 0, got 0.0."),
        (["--elmo-dropout", "1"], "Expected elmo_dropout from 0 to below 1, got 1.0."),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    options: list[str], message: str, data: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    assert message in refuse_to_train(data, tmp_path / "my-ner", tiny_folder, *options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "tagging", "--train", "a", "--dev", "b", "--output", "c"], "Expected a task"),
        (["train", "ner", "--train", "a", "--dev", "b", "--output", "c"], "No such file"),
    ],
)
def test_mistakes_are_told(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(APP, arguments)
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert message in result.output


def test_a_model_that_reads_nothing_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    trees = tmp_path / "trees.txt"
    trees.write_text("(3 (2 It) (3 works))\n")
    common = ["--train", trees, "--dev", trees, "--output", tmp_path / "a", "--model", tiny_folder]
    arguments = [str(argument) for argument in ["train", "sentiment", *common, "--elmo", "none"]]
    result = CliRunner().invoke(APP, arguments)
    assert result.exit_code == 1
    assert "Error: Expected words to come in by" in result.output
    assert "--vectors" in result.output


def test_words_without_labels_are_predicted(data: Path, tiny_folder: Path, tmp_path: Path) -> None:
    output, found, words = (tmp_path / name for name in ("my-ner", "found.jsonl", "words.conll"))
    train(data, output, tiny_folder)
    words.write_text("The\nold\ncat\n\nNo\nbank\n")
    run("predict", output, words, found, "--device", "cpu")
    lines = [json.loads(line) for line in found.read_text().splitlines()]
    assert [line["words"] for line in lines] == [["The", "old", "cat"], ["No", "bank"]]


def refuse_to_predict(*arguments: str | Path) -> str:
    result = CliRunner().invoke(APP, ["predict", *map(str, arguments)])
    assert result.exit_code == 1, result.output
    return " ".join(result.output.split())


def test_predictions_are_made_in_parts_and_written_together_or_not_at_all(
    data: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, whole, found = (tmp_path / name for name in ("my-ner", "whole.jsonl", "found.jsonl"))
    train(data, output, tiny_folder)
    run("predict", output, data, whole, "--device", "cpu")
    monkeypatch.setattr(commands, "EXAMPLES_PER_PART", 2)
    run("predict", output, data, found, "--device", "cpu")
    assert found.read_text() == whole.read_text()
    assert json.loads(run("test", output, data))  # of all parts

    found.unlink()
    results: Iterator[list[Any]] = iter([[set(), set()]])  # of the first part alone

    def predict(*_: Any, **__: Any) -> list[Any]:
        for result in results:
            return result
        raise OSError("No memory is left.")

    monkeypatch.setattr(commands, "predict_examples", predict)
    assert "No memory is left." in refuse_to_predict(output, data, found)
    assert not list(tmp_path.glob("found.jsonl*"))


def test_predictions_keep_characters_that_are_not_unicode(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = SimpleNamespace(to_json=lambda example, found: {"words": [example]})
    monkeypatch.setattr(commands, "_predict", lambda *_: [(task, ["\ud83d"], [None])])
    run("predict", "my-ner", data, tmp_path / "found.jsonl")
    assert json.loads((tmp_path / "found.jsonl").read_text()) == {"words": ["\ud83d"]}


def test_predictions_replace_no_file_of_the_users(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("mine")
    missing = tmp_path / "missing" / "found.jsonl"
    for output, options, message in (
        (data, ["--overwrite"], "Expected an output other than the input"),
        (other, [], "Expected a new file, got"),
        (Path("-"), [], "got -. Standard output is /dev/stdout."),
        (missing, [], "Expected a folder"),  # before the model is looked for
    ):
        assert message in refuse_to_predict("no-model", data, output, *options)
    assert (data.read_text(), other.read_text()) == (TEXT, "mine")


def test_a_model_of_no_task_is_refused(data: Path, tiny_folder: Path) -> None:
    result = CliRunner().invoke(APP, ["test", str(tiny_folder), str(data)])
    assert result.exit_code == 1
    assert "Expected a model of a task" in result.output


def test_training_ends_when_its_time_is_over(
    data: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "my-ner"
    train(data, output, tiny_folder, "--max-minutes", "0", "--batch-size", "1")
    (checkpoint,) = output.glob("checkpoint-*")
    assert checkpoint.name == "checkpoint-1"  # of six
    assert read_seconds(output) > 0
    tested = json.loads(run("test", output, data))
    assert set(tested) == {"precision", "recall", "f1"}
    monkeypatch.setattr(WordInputs, "fill", lambda *_: pytest.fail("read the text again"))
    train(data, output, tiny_folder, "--max-minutes", "0", "--batch-size", "1", "--resume")
    assert list(output.glob("checkpoint-*")) == [checkpoint]


def test_documents_are_trained_one_at_a_time(data: Path, tmp_path: Path) -> None:
    common = ["--train", str(data), "--dev", str(data), "--output", str(tmp_path / "coref")]
    result = CliRunner().invoke(APP, ["train", "coref", *common, "--batch-size", "4"])
    assert result.exit_code != 0
    assert "Expected --batch-size 1 for coref, got 4" in result.output
    assert not (tmp_path / "coref").exists()

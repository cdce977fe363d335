"""Options that `pretrain` refuses before it reads any text; others are in test_commands.py."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from hf_elmo import ElmoConfig
from hf_elmo.__main__ import app
from hf_elmo.pretraining.option_checks import (
    HELD_OPTIONS,
    check_model,
    hold_options,
    is_own_file,
)


@pytest.mark.parametrize("name", ["text.jsonl", "x=1.PARQUET", "*.json.gz=2", "*"])
def test_a_dataset_is_no_text(name: str, tmp_path: Path) -> None:
    for file in ("text.jsonl", "x=1.PARQUET", "a.json.gz"):
        (tmp_path / file).touch()
    command = ["pretrain", "--train", str(tmp_path / name), "--output", str(tmp_path / "model")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code != 0
    assert "read by pretrain --dataset only" in " ".join(result.output.split())


@pytest.mark.parametrize("option", ["--valid", "--vocab"])
def test_held_out_text_and_target_words_are_not_trained_on(
    command: list[str], option: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("a b\n")
    (tmp_path / "b.txt").write_text("<S>\n</S>\n<UNK>\na\n")
    (tmp_path / "link").symlink_to(tmp_path / "b.txt")
    command += ["--train", str(tmp_path / "*.txt"), option, str(tmp_path / "link")]
    result = CliRunner().invoke(app, command)
    assert f"other files in --train than in {option}, got" in " ".join(result.output.split())


def test_files_of_the_run_are_not_trained_on(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b c\nd e\n")
    command += ["--train", str(tmp_path / "**" / "*.txt")]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (tmp_path / "model" / "target_vocab.txt").exists()
    assert CliRunner().invoke(app, [*command, "--resume"]).exit_code == 0
    own = ["target_vocab.txt", "checkpoint-2/x.txt", "runs/x.txt", "config.json", "a.txt", "a/runs"]
    found = [name for name in own if is_own_file(str(tmp_path / name), tmp_path)]
    assert found == own[:4]


@pytest.fixture
def command(tmp_path: Path, tiny_config: ElmoConfig) -> list[str]:
    """The command of a short training, without its text."""
    tiny_config.to_json_file(tmp_path / "tiny.json")
    options = ["--config", tmp_path / "tiny.json", "--negatives", 0, "--batch-size", 2]
    options += ["--max-steps", 2, "--cpu", "--output", tmp_path / "model"]
    return ["pretrain", *map(str, options)]


def test_a_run_does_not_go_on_with_a_dataset_that_has_changed(
    command: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "data").mkdir()
    lines = [json.dumps({"text": text}) for text in ("a b c", "b c d e", "c d")]
    (tmp_path / "data" / "part.jsonl").write_text("\n".join(lines))
    command += ["--dataset", str(tmp_path / "data")]
    assert CliRunner().invoke(app, command).exit_code == 0
    command += ["--resume"]
    assert CliRunner().invoke(app, command).exit_code == 0

    (tmp_path / "data" / "part.jsonl").write_text("\n".join(lines[1:]))

    result = CliRunner().invoke(app, command)
    assert result.exit_code != 0
    assert "Expected --dataset with the content that it had" in " ".join(result.output.split())


@pytest.mark.parametrize(("old", "new"), [("a", "z"), ("b", "c")])
def test_a_run_does_not_go_on_with_files_of_other_names(
    command: list[str], old: str, new: str, tmp_path: Path
) -> None:
    for name, text in (("a", "a b c\nd e\n"), ("b", "f g\nh i j\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    command += ["--train", str(tmp_path / "*.txt")]
    assert CliRunner().invoke(app, command).exit_code == 0
    command += ["--resume"]
    assert CliRunner().invoke(app, command).exit_code == 0

    (tmp_path / f"{old}.txt").rename(tmp_path / f"{new}.txt")

    message = " ".join(CliRunner().invoke(app, command).output.split())
    assert "Expected the files of --train with the names and the order" in message


def test_a_vocabulary_in_the_output_is_not_replaced(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "target_vocab.txt").write_text("a\n")
    result = CliRunner().invoke(app, [*command, "--train", str(tmp_path / "a.txt")])
    assert "holds target_vocab.txt, which would be lost" in " ".join(result.output.split())


def test_a_preset_is_not_combined_with_a_model_to_train_on(tmp_path: Path) -> None:
    command = ["pretrain", "--train", "a.txt", "--output", str(tmp_path / "model")]
    result = CliRunner().invoke(app, [*command, "--from", "elmo-mini-en", "--preset", "mini"])
    assert "Expected either --preset or --from, got both" in " ".join(result.output.split())


def test_there_are_fewer_negatives_than_target_words(tiny_config: ElmoConfig) -> None:
    tiny_config.vocab_size = 7
    options = {"char_noise": 0.0, "negatives": 6}
    check_model(options, tiny_config)
    with pytest.raises(ValueError, match=r"Expected --negatives below 7, .* got 7"):
        check_model(options | {"negatives": 7}, tiny_config)


def test_every_option_must_stay_when_a_run_is_resumed_except_these() -> None:
    names = {option.name for option in typer.main.get_command(app).commands["pretrain"].params}
    length = {"epochs", "max_steps", "max_hours", "patience"}
    output = {"output", "resume", "log_every", "save_every", "evaluate_every", "keep"}
    speed = {"cpu", "gradient_checkpointing"}
    assert names - set(HELD_OPTIONS) == length | output | speed | {"vocabulary"}


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Options of `pretrain`, with files in the folder `data`."""
    data = tmp_path / "data"
    for name in ("train.txt", "valid.txt", "config.json", "from/config.json", "set[1]/a.jsonl"):
        (data / name).parent.mkdir(exist_ok=True, parents=True)
        (data / name).write_text("{}")
    options: dict[str, Any] = dict.fromkeys((*HELD_OPTIONS, "vocabulary"))
    files = {"config": "config.json", "from_model": "from", "dataset": "set[1]", "pipeline": "from"}
    options |= {name: str(data / file) for name, file in files.items()}
    options |= {name: [str(data / f"{name}*.txt")] for name in ("train", "valid")}
    return options | {"output": tmp_path / "model"}


def start(options: dict[str, Any]) -> None:
    """Write what a run has written when it was stopped."""
    checkpoint = options["output"] / "checkpoint-1"
    checkpoint.parent.mkdir()
    hold_options(options)
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text('{"global_step": 1}')


def test_a_run_goes_on_after_its_files_have_moved(options: dict[str, Any], tmp_path: Path) -> None:
    start(options)
    (tmp_path / "data").rename(tmp_path / "moved")
    for name in ("config", "from_model", "dataset", "pipeline"):
        options[name] = options[name].replace("/data/", "/moved/")
    for name in ("train", "valid"):
        options[name] = [options[name][0].replace("/data/", "/moved/")]
    hold_options(options)


@pytest.mark.parametrize(
    ("file", "option"),
    [
        ("valid.txt", "valid"),
        ("set[1]/a.jsonl", "dataset"),
        ("from/config.json", "from"),
        ("config.json", "config"),
    ],
)
def test_a_run_does_not_go_on_with_other_content(
    file: str, option: str, options: dict[str, Any], tmp_path: Path
) -> None:
    start(options)
    (tmp_path / "data" / file).write_text("other")
    with pytest.raises(ValueError, match=f"Expected --{option} with the content that it had"):
        hold_options(options)


def test_a_run_does_not_go_on_with_held_out_text_of_another_name(
    options: dict[str, Any], tmp_path: Path
) -> None:
    start(options)
    (tmp_path / "data" / "valid.txt").rename(tmp_path / "data" / "valid2.txt")
    with pytest.raises(ValueError, match="Expected the files of --valid with the names"):
        hold_options(options)


def test_a_run_goes_on_if_its_dataset_is_beside_its_output(
    options: dict[str, Any], tmp_path: Path
) -> None:
    options["dataset"] = str(tmp_path)
    start(options)
    hold_options(options)

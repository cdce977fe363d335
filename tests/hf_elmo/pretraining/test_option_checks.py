"""Options that `pretrain` refuses before it reads any text; others are in test_commands.py."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hf_elmo import ElmoConfig
from hf_elmo.__main__ import app
from hf_elmo.pretraining.option_checks import is_own_file


@pytest.mark.parametrize("name", ["text.jsonl", "x=1.PARQUET", "*.json.gz=2", "*"])
def test_a_dataset_is_no_text(name: str, tmp_path: Path) -> None:
    for file in ("text.jsonl", "x=1.PARQUET", "a.json.gz"):
        (tmp_path / file).touch()
    command = ["pretrain", "--train", str(tmp_path / name), "--output", str(tmp_path / "model")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code != 0
    assert "Only pretrain --dataset reads such files" in " ".join(result.output.split())


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
    own = ["target_vocab.txt", "checkpoint-2/x.txt", "a.txt", "a/runs"]
    found = [name for name in own if is_own_file(str(tmp_path / name), tmp_path)]
    assert found == own[:2]


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

"""Options that `pretrain` refuses before it reads any text; others are in test_commands.py."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hf_elmo import ElmoConfig
from hf_elmo.__main__ import app


@pytest.mark.parametrize("name", ["text.jsonl", "x=1.PARQUET", "*.json.gz=2"])
def test_a_dataset_is_no_text(name: str, tmp_path: Path) -> None:
    command = ["pretrain", "--train", str(tmp_path / name), "--output", str(tmp_path / "model")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code != 0
    assert "give its folder to --dataset" in " ".join(result.output.split())


def test_a_run_does_not_go_on_with_a_dataset_that_has_changed(
    tmp_path: Path, tiny_config: ElmoConfig
) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "data").mkdir()
    lines = [json.dumps({"text": text}) for text in ("a b c", "b c d e", "c d")]
    (tmp_path / "data" / "part.jsonl").write_text("\n".join(lines))
    tiny_config.to_json_file(tmp_path / "tiny.json")
    command = ["pretrain", "--dataset", tmp_path / "data", "--output", tmp_path / "model"]
    command += ["--config", tmp_path / "tiny.json", "--negatives", 0, "--batch-size", 2]
    command += ["--max-steps", 2, "--cpu"]
    assert CliRunner().invoke(app, list(map(str, command))).exit_code == 0
    command += ["--resume"]
    assert CliRunner().invoke(app, list(map(str, command))).exit_code == 0

    (tmp_path / "data" / "part.jsonl").write_text("\n".join(lines[1:]))

    result = CliRunner().invoke(app, list(map(str, command)))
    assert result.exit_code != 0
    assert "Expected --dataset with the content that it had" in " ".join(result.output.split())


def test_a_run_does_not_go_on_with_files_in_another_order(
    tmp_path: Path, tiny_config: ElmoConfig
) -> None:
    for name, text in (("a", "a b c\nd e\n"), ("b", "f g\nh i j\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    tiny_config.to_json_file(tmp_path / "tiny.json")
    command = ["pretrain", "--train", tmp_path / "*.txt", "--output", tmp_path / "model"]
    command += ["--config", tmp_path / "tiny.json", "--negatives", 0, "--batch-size", 2]
    command += ["--max-steps", 2, "--cpu"]
    assert CliRunner().invoke(app, list(map(str, command))).exit_code == 0
    command += ["--resume"]
    assert CliRunner().invoke(app, list(map(str, command))).exit_code == 0

    (tmp_path / "a.txt").rename(tmp_path / "z.txt")

    result = CliRunner().invoke(app, list(map(str, command)))
    assert result.exit_code != 0
    assert "Expected the files of --train with the names and the order" in " ".join(
        result.output.split()
    )

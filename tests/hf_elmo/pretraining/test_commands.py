import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from hf_elmo import ElmoConfig
from hf_elmo.__main__ import app
from hf_elmo.language_model.models import load_language_model
from hf_elmo.language_model.vocabulary import TargetVocabulary

LINES = [" ".join(("abcdefghij" * 2)[i : i + n]) for i in range(10) for n in (2, 3, 5, 8)]


@pytest.fixture
def folder(tmp_path: Path, tiny_config: ElmoConfig) -> Path:
    """A folder with text, and the configuration of a tiny biLM without dropout."""
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n")
    tiny_config.dropout = 0.0
    tiny_config.to_json_file(tmp_path / "tiny.json")
    return tmp_path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def fail(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code != 0
    return result.output


def pretrain_arguments(folder: Path, output: str) -> list[object]:
    return [
        "pretrain",
        *("--train", folder / "text.txt", "--output", folder / output),
        *("--config", folder / "tiny.json", "--vocab-size", 20, "--negatives", 4),
        *("--window", 5, "--max-steps", 4, "--log-every", 1, "--cpu"),
    ]


@pytest.fixture
def trained(folder: Path) -> Path:
    run(*pretrain_arguments(folder, "model"), "--batch-size", 4)
    return folder / "model"


def test_vocab_writes_the_most_frequent_words(folder: Path) -> None:
    output = run("vocab", folder / "text.txt", "--size", 6, "--output", folder / "v.txt")

    words = TargetVocabulary.from_file(folder / "v.txt").words
    assert words[:3] == ["<S>", "</S>", "<UNK>"]
    assert len(words) == 6
    assert "6 of 10 words" in output


def test_pretrain_writes_a_language_model(trained: Path) -> None:
    model, _, vocabulary = load_language_model(str(trained))

    assert len(vocabulary) == 13
    assert model.config.vocab_size == 13


def test_pretrain_goes_on_from_a_checkpoint(folder: Path) -> None:
    arguments = pretrain_arguments(folder, "model")
    run(*arguments, "--batch-size", 4)
    whole = load_file(folder / "model" / "model.safetensors")
    parts = pretrain_arguments(folder, "parts")
    run(*parts, "--batch-size", 4, "--save-every", 2)

    shutil.rmtree(folder / "parts" / "checkpoint-4")
    run(*parts, "--batch-size", 4, "--save-every", 2, "--resume")

    for name, value in load_file(folder / "parts" / "model.safetensors").items():
        assert torch.equal(value, whole[name]), name


def test_pretrain_reads_a_dataset(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(*names: str | None, **options: object) -> list[dict[str, str]]:
        calls.append((names, options))
        return [{"body": line} for line in LINES]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    arguments = pretrain_arguments(folder, "model")
    arguments[1:3] = ["--dataset", "some/text"]

    run(*arguments, "--dataset-config", "en", "--split", "part", "--column", "body")

    assert calls == [(("some/text", "en"), {"split": "part", "streaming": True})]
    assert len(TargetVocabulary.from_file(folder / "model")) == 13


def test_pretrain_counts_passes_over_the_text(folder: Path) -> None:
    arguments = pretrain_arguments(folder, "model")
    place = arguments.index("--max-steps")
    arguments[place : place + 2] = ["--epochs", 2]

    run(*arguments, "--batch-size", 4)

    targets = sum(len(line.split()) + 1 for line in LINES)
    steps = math.ceil(2 * targets / (4 * 5))
    assert (folder / "model" / f"checkpoint-{steps}").is_dir()


def test_pretrain_trains_a_model_on_with_its_own_words(folder: Path, trained: Path) -> None:
    (folder / "new.txt").write_text("a b zebra\n" * 30)
    arguments = pretrain_arguments(folder, "more")
    place = arguments.index("--config")
    arguments[place : place + 2] = ["--from", trained]
    arguments[2] = folder / "new.txt"

    run(*arguments, "--batch-size", 4, "--valid", folder / "new.txt", "--evaluate-every", 2)

    _, _, vocabulary = load_language_model(str(folder / "more"))
    assert vocabulary.words == TargetVocabulary.from_file(trained).words
    before = evaluate(folder / "new.txt", trained)
    assert evaluate(folder / "new.txt", folder / "more") < before


def evaluate(text: Path, model: Path, *options: object) -> float:
    output = run("evaluate", text, "--model", model, *options)
    (line,) = [line for line in output.splitlines() if line.startswith("average")]
    return float(line.split()[1])


def test_evaluate_shows_the_perplexity_by_both_protocols(folder: Path, trained: Path) -> None:
    sentences = evaluate(folder / "text.txt", trained)
    stream = evaluate(folder / "text.txt", trained, "--protocol", "bilm-tf", "--batch-size", 2)

    assert 5 < sentences < 20
    assert sentences != stream


def test_score_writes_a_line_for_each_word(folder: Path, trained: Path) -> None:
    (folder / "two.txt").write_text("a b c\nd zebra\n")

    lines = run("score", folder / "two.txt", "--model", trained).splitlines()

    assert [line.split("\t")[0] for line in lines] == [
        *("# sentence 0", "a", "b", "c"),
        *("# sentence 1", "d", "zebra"),
    ]
    sums = [float(value) for value in lines[0].split("\t")[1:4]]
    columns = [[float(value) for value in line.split("\t")[1:]] for line in lines[1:4]]
    assert sums == pytest.approx([sum(column) for column in zip(*columns, strict=True)], abs=1e-3)


def test_substitutes_shows_words_and_probabilities(trained: Path) -> None:
    lines = run("substitutes", "a b c", 1, "--model", trained, "--count", 3).splitlines()

    assert len(lines) == 3
    values = [float(line.split("\t")[1]) for line in lines]
    assert values == sorted(values, reverse=True)


def test_mistakes_are_told_without_a_traceback(
    folder: Path, trained: Path, tiny_folder: Path
) -> None:
    text = folder / "text.txt"
    (folder / "empty.txt").touch()

    assert "No sentence in" in fail("score", folder / "empty.txt", "--model", trained)
    assert "either --train or --dataset" in fail("pretrain", "--output", folder / "x")
    assert "Expected --valid with" in fail(*pretrain_arguments(folder, "x"), "--patience", 1)
    assert "holds checkpoints: --resume" in fail(*pretrain_arguments(folder, "model"))
    assert "none at" in fail("vocab", folder / "missing.txt")
    assert "Expected target_vocab.txt" in fail("evaluate", text, "--model", tiny_folder)
    assert "position from 0 to 0, got 5" in fail("substitutes", "a", 5, "--model", trained)


@pytest.mark.parametrize("command", ["vocab", "pretrain", "evaluate", "score", "substitutes"])
def test_help_shows_how_to_use_a_command(command: str) -> None:
    assert f"python -m hf_elmo {command}" in run(command, "--help")


@pytest.mark.slow
@pytest.mark.parametrize("negatives", [0, 4])
def test_two_processes_train_as_one_with_the_same_rows(folder: Path, negatives: int) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    for output, processes, batch_size in (("one", 1, 4), ("two", 2, 2)):
        arguments = pretrain_arguments(folder, output)
        subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(processes), "-m", "hf_elmo"),
                *map(str, arguments),
                *("--batch-size", str(batch_size), "--negatives", str(negatives)),
            ],
            env=environment,
            check=True,
            capture_output=True,
        )

    one, two = (load_file(folder / name / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert {path.name for path in (folder / "two").glob("checkpoint-4/bilm_state_*")} == {
        "bilm_state_0.safetensors",
        "bilm_state_1.safetensors",
    }

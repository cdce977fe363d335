"""The commands of a language model: vocab, evaluate, score, substitutes."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoModel, ElmoTokenizer
from hf_elmo.__main__ import app
from hf_elmo.language_model.vocabulary import TargetVocabulary, build_pieces

LETTERS = "abcdefghij"
LINES = [" ".join((LETTERS * 2)[i : i + n]) for i in range(10) for n in (2, 3, 5, 8)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with text."""
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n")
    return tmp_path


@pytest.fixture
def trained(folder: Path, tiny_config: ElmoConfig) -> Path:
    """A language model of ten letters, of random weights."""
    torch.manual_seed(0)
    vocabulary = TargetVocabulary(["<S>", "</S>", "<UNK>", *LETTERS])
    tiny_config.vocab_size = len(vocabulary)
    ElmoForPreTraining(tiny_config).save_pretrained(folder / "model")
    ElmoTokenizer.from_config(tiny_config).save_pretrained(folder / "model")
    vocabulary.save(folder / "model")
    return folder / "model"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def fail(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code != 0
    return result.output


def test_vocab_writes_the_most_frequent_words(folder: Path) -> None:
    options = ["--size", "6", "--output", str(folder / "v.txt")]
    result = CliRunner().invoke(app, ["vocab", str(folder / "text.txt"), *options])

    words = TargetVocabulary.from_file(folder / "v.txt").words
    assert words[:3] == ["<S>", "</S>", "<UNK>"]
    assert len(words) == 6
    assert "3 of 10 words" in result.stderr


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs /dev/fd")
def test_vocab_appends_to_an_open_file(folder: Path) -> None:
    (folder / "kept.txt").write_text("kept\n")
    with (folder / "kept.txt").open("a") as file:
        run("vocab", folder / "text.txt", "--output", f"/dev/fd/{file.fileno()}")
    assert (folder / "kept.txt").read_text().startswith("kept\n<S>\n")


def test_vocab_replaces_no_file_of_the_users(folder: Path) -> None:
    text = (folder / "text.txt").read_text()
    message = fail("vocab", folder / "*.txt", "--output", folder / "text.txt", "--overwrite")
    assert "Expected an output other than the input" in message
    (folder / "v.txt").write_text("mine")
    assert "Expected a new file" in fail("vocab", folder / "text.txt", "--output", folder / "v.txt")
    run("vocab", folder / "text.txt", "--output", folder / "v.txt", "--overwrite")
    assert (folder / "text.txt").read_text() == text
    assert (folder / "v.txt").read_text().startswith("<S>")


def test_vocab_of_nothing_is_refused(folder: Path) -> None:
    (folder / "empty.txt").write_text("\ufeff\n \n")
    message = fail("vocab", folder / "empty.txt", "--output", folder / "v.txt")
    assert "Error: Expected words to count, found none in" in message
    assert not (folder / "v.txt").exists()


def evaluate(text: Path, model: Path, *options: object) -> float:
    output = run("evaluate", text, "--model", model, *options)
    (line,) = [line for line in output.splitlines() if line.startswith("average")]
    return float(line.split()[1])


def test_evaluate_shows_the_perplexity_by_both_protocols(folder: Path, trained: Path) -> None:
    sentences = evaluate(folder / "text.txt", trained)
    stream = evaluate(folder / "text.txt", trained, "--protocol", "bilm-tf", "--batch-size", 2)

    assert 5 < sentences < 20
    assert sentences != stream


@pytest.mark.parametrize("options", [[], ["--protocol", "bilm-tf", "--batch-size", 1]])
def test_evaluate_and_score_tell_of_words_that_the_model_does_not_know(
    options: list[object], folder: Path, trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "odd.txt").write_text("a zebra yak b\n" * 2)

    lines = run("evaluate", folder / "odd.txt", "--model", trained, *options).splitlines()
    assert [line.split()[1] for line in lines[-2:]] == ["10", "4"]
    assert "4 of 10 predictions are <UNK>" in caplog.text
    caplog.clear()
    run("score", folder / "odd.txt", "--model", trained)
    assert "4 of 8 predictions are <UNK>" in caplog.text
    caplog.clear()
    run("evaluate", folder / "text.txt", "--model", trained, *options)
    run("score", folder / "text.txt", "--model", trained)
    assert "<UNK>" not in caplog.text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_language_model_in_half_precision_is_computed_in_float32(
    dtype: torch.dtype, folder: Path, trained: Path
) -> None:
    expected = evaluate(folder / "text.txt", trained)
    ElmoForPreTraining.from_pretrained(trained).to(dtype).save_pretrained(trained)

    assert evaluate(folder / "text.txt", trained) == pytest.approx(expected, rel=0.01)
    assert run("score", folder / "text.txt", "--model", trained)
    assert run("substitutes", "a b c", 1, "--model", trained)


def test_a_language_model_without_its_softmax_is_refused(folder: Path, trained: Path) -> None:
    ElmoModel.from_pretrained(trained).save_pretrained(trained)
    message = " ".join(fail("evaluate", folder / "text.txt", "--model", trained).split())
    assert "Expected target_vocab.txt and a softmax in" in message


def test_substitutes_of_a_model_over_pieces_are_refused(trained: Path) -> None:
    build_pieces(lambda _: iter([["ab", "abc"]]), max_size=13).pieces.save(
        str(trained / "pieces.json")
    )
    assert "got one that predicts pieces" in " ".join(
        fail("substitutes", "a b c", 1, "--model", trained).split()
    )


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
    (folder / "empty.txt").touch()

    assert "Error: Expected sentences to score" in fail(
        "score", folder / "empty.txt", "--model", trained
    )
    assert "none at" in fail("vocab", folder / "missing.txt")
    assert "found none at -" in fail("vocab", "-")
    assert "Expected --protocol bilm-tf together with --batch-size" in fail(
        "evaluate", folder / "text.txt", "--model", trained, "--batch-size", 2
    )
    assert "Expected target_vocab.txt" in fail(
        "evaluate", folder / "text.txt", "--model", tiny_folder
    )
    assert "position from 0 to 0, got 5" in fail("substitutes", "a", 5, "--model", trained)


@pytest.mark.parametrize("command", ["vocab", "evaluate", "score", "substitutes"])
def test_help_shows_how_to_use_a_command(command: str) -> None:
    assert f"python -m hf_elmo {command}" in run(command, "--help")

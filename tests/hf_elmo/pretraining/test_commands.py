import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import spacy
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from hf_elmo import ElmoConfig
from hf_elmo.__main__ import app
from hf_elmo.language_model.models import load_language_model
from hf_elmo.language_model.perplexity import evaluate_text
from hf_elmo.language_model.vocabulary import TargetVocabulary
from hf_elmo.pretraining.commands import flush_denormal
from hf_elmo.text.text_reader import read_files

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


def test_pretrain_writes_a_language_model(trained: Path) -> None:
    model, _, vocabulary = load_language_model(str(trained))

    assert len(vocabulary) == 13
    assert model.config.vocab_size == 13


def test_pretrain_warns_of_words_that_are_longer_than_the_model_reads(
    folder: Path, tiny_config: ElmoConfig, caplog: pytest.LogCaptureFixture
) -> None:
    longest = tiny_config.max_characters_per_token - 2
    sentence = f"{'ä' * (longest // 2)} {'ä' * (longest // 2 + 1)}\n"
    (folder / "text.txt").write_text(sentence * 9, encoding="utf-8")
    run(*pretrain_arguments(folder, "model"), "--negatives", 0, "--batch-size", 4)
    assert f"9 of 18 words have more than {longest} bytes" in caplog.text


def test_pretrain_warns_of_a_text_that_the_vocabulary_does_not_know(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "counts.txt").write_text("<S>\n</S>\n<UNK>\na 12\nb 11\nc\n")
    arguments = pretrain_arguments(folder, "model")
    position = arguments.index("--vocab-size")
    arguments[position : position + 2] = ["--vocab", folder / "counts.txt"]
    run(*arguments, "--batch-size", 4)
    text = (folder / "text.txt").read_text().split()
    unknown = len(text) - text.count("c")
    assert f"{unknown} of {len(text) + len(LINES)} predictions are <UNK>" in caplog.text


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


def test_pretrain_goes_on_with_its_own_options_alone(folder: Path, trained: Path) -> None:
    arguments = [*pretrain_arguments(folder, "model"), "--resume"]
    message = " ".join(fail(*arguments, "--batch-size", 8).split())
    assert "Expected --batch-size 4, as when the run in" in message
    for option in ("--ema", "--dropout", "--max-grad-norm", "--bfloat16", "--valid"):
        value = {"--bfloat16": [], "--valid": [folder / "text.txt"]}.get(option, [0.9])
        message = " ".join(fail(*arguments, "--batch-size", 4, option, *value).split())
        assert f"got {option}" in message
    config = folder / "tiny.json"
    before = config.read_text()
    config.write_text(before.replace("{", '{"forget_bias": 0.5, ', 1))
    message = " ".join(fail(*arguments, "--batch-size", 4).split())
    assert "Expected --config with the content that it had" in message
    config.write_text(before)
    run(*arguments, "--batch-size", 4, "--max-steps", 6)  # longer it may be


def test_pretrain_goes_on_with_the_words_that_it_has(folder: Path) -> None:
    arguments = [*pretrain_arguments(folder, "model"), "--batch-size", 4]
    place = arguments.index("--vocab-size")
    del arguments[place : place + 2]
    run(*arguments)
    words = TargetVocabulary.from_file(folder / "model").words
    text = folder / "text.txt"
    text.write_text(text.read_text().replace("cat", "bat"))  # of the same size
    more = [*arguments, "--max-steps", 5, "--resume"]
    run(*more)
    assert TargetVocabulary.from_file(folder / "model").words == words
    other = folder / "other.txt"
    other.write_text("".join(f"{word}\n" for word in reversed(words)))
    message = fail(*more, "--vocab", other)
    assert "Expected the target words of" in message
    assert "other.txt, got others." in message


def test_pretrain_goes_on_from_the_checkpoint_before_a_damaged_one(folder: Path) -> None:
    arguments = [*pretrain_arguments(folder, "model"), "--save-every", 2, "--resume"]
    run(*arguments)
    last = max((folder / "model").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    (last / "target_vocab.txt").write_text("")
    with pytest.warns(UserWarning, match=rf"{last.name}: missing or damaged: target_vocab.txt"):
        run(*arguments)


def test_pretrain_does_not_go_on_with_another_text(folder: Path, trained: Path) -> None:
    with (folder / "text.txt").open("a") as text:
        text.write("a mat\n")
    message = fail(*pretrain_arguments(folder, "model"), "--batch-size", 4, "--resume")
    assert "Expected --train with the content that it had when the run" in " ".join(message.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "mini"], "Expected either --preset or --config, got both."),
        (["--vocab", "text.txt"], "Expected either --vocab-size or --vocab, got both."),
        (["--split", "train"], "Expected either --split or --train, got both."),
        (["--column", "text"], "Expected either --column or --train, got both."),
        (["--dataset-config", "en"], "Expected either --dataset-config or --train, got both."),
        (["--epochs", 0], "Expected --epochs above 0 and finite, got 0.0."),
        (["--epochs", "inf"], "Expected --epochs above 0 and finite, got inf."),
        (
            ["--max-grad-norm", "nan"],
            "Expected --max-grad-norm of 0 (no maximum) or above, got nan",
        ),
        (["--max-grad-norm", -1], "Expected --max-grad-norm of 0 (no maximum) or above, got -1.0"),
        (["--ema", 1], "Expected --ema below 1"),
        (["--learning-rate", 0], "Expected --learning-rate above 0"),
        (["--learning-rate", "nan"], "Expected --learning-rate above 0"),
    ],
)
def test_pretrain_refuses_options_without_effect(
    options: list[object], message: str, folder: Path
) -> None:
    assert message in " ".join(fail(*pretrain_arguments(folder, "x"), *options).split())
    assert not (folder / "x").exists()


def test_pretrain_refuses_a_number_of_words_for_a_model_that_keeps_its_words(
    folder: Path, trained: Path
) -> None:
    arguments = pretrain_arguments(folder, "more")
    place = arguments.index("--config")
    arguments[place : place + 2] = ["--from", trained]
    message = " ".join(fail(*arguments).split())
    assert "Expected --from without --vocab-size" in message
    assert not (folder / "more").exists()


@pytest.mark.parametrize("what", ["--train", "--valid"])
def test_pretrain_without_sentences_is_refused(what: str, folder: Path) -> None:
    (folder / "empty.txt").write_text(" \n")
    arguments = [*pretrain_arguments(folder, "model"), "--valid", folder / "text.txt"]
    arguments[arguments.index(what) + 1] = folder / "empty.txt"
    message = fail(*arguments)
    assert "found none" in message
    assert not (folder / "model" / "model.safetensors").exists()


def test_pretrain_finds_a_bad_line_before_it_trains(folder: Path, trained: Path) -> None:
    with (folder / "text.txt").open("ab") as text:
        text.write(b"na\xefve\n")
    arguments = pretrain_arguments(folder, "more")
    place = arguments.index("--vocab-size")
    arguments[place : place + 2] = ["--vocab", trained / "target_vocab.txt"]

    message = fail(*arguments, "--batch-size", 2, "--max-steps", 1)

    assert "got byte 0xef in line 41" in " ".join(message.split())
    assert not (folder / "more" / "model.safetensors").exists()


def test_pretrain_refuses_more_negatives_than_words(folder: Path) -> None:
    message = fail(*pretrain_arguments(folder, "model"), "--negatives", 8192)
    assert "Expected --negatives below 13" in " ".join(message.split())


def test_pretrain_evaluates_nearly_all_of_a_short_text(folder: Path) -> None:
    arguments = [*pretrain_arguments(folder, "model"), "--batch-size", 16]
    shutil.copy(folder / "text.txt", folder / "valid.txt")
    run(*arguments, "--valid", folder / "valid.txt", "--evaluate-every", 4)

    state = json.loads((folder / "model" / "checkpoint-4" / "trainer_state.json").read_text())
    (num_targets,) = [log["eval_targets"] for log in state["log_history"] if "eval_targets" in log]
    assert num_targets > 0.9 * sum(len(line.split()) + 1 for line in LINES)


def test_pretrain_evaluates_on_less_than_a_batch(folder: Path) -> None:
    (folder / "valid.txt").write_text("a cat sat\n")
    run(*pretrain_arguments(folder, "model"), "--batch-size", 4, "--valid", folder / "valid.txt")


def test_pretrain_replaces_no_model_that_it_did_not_make(folder: Path, trained: Path) -> None:
    for checkpoint in trained.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    before = (trained / "model.safetensors").read_bytes()
    assert "holds config.json, which would be lost" in fail(*pretrain_arguments(folder, "model"))
    assert (trained / "model.safetensors").read_bytes() == before


def test_pretrain_takes_a_new_model_or_an_old_one(folder: Path, trained: Path) -> None:
    assert "Expected either --config or --from" in " ".join(
        fail(*pretrain_arguments(folder, "new"), "--from", trained).split()
    )


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
    for name in ("new.txt", "valid.txt"):
        (folder / name).write_text("a b zebra\n" * 30)
    arguments = pretrain_arguments(folder, "more")
    place = arguments.index("--config")
    arguments[place : place + 4] = ["--from", trained]
    arguments[2] = folder / "new.txt"

    run(*arguments, "--batch-size", 4, "--valid", folder / "valid.txt", "--evaluate-every", 2)

    _, _, vocabulary = load_language_model(str(folder / "more"))
    assert vocabulary.words == TargetVocabulary.from_file(trained).words
    before = evaluate(folder / "new.txt", trained)
    assert evaluate(folder / "new.txt", folder / "more") < before


def evaluate(text: Path, model: Path) -> float:
    return evaluate_text(*load_language_model(str(model)), read_files([text])).average


def test_pretrain_learns_all_of_a_recipe_and_goes_on_exactly(folder: Path) -> None:
    (folder / "new.txt").write_text("a b zebra\n" * 10)
    recipe = [
        *("--train", f"{folder / 'new.txt'}=0.5", "--schedule", "linear", "--warmup-steps", 1),
        *("--ema", 0.9, "--char-noise", 0.1, "--batch-size", 4, "--save-every", 2),
    ]
    run(*pretrain_arguments(folder, "whole"), *recipe)
    run(*pretrain_arguments(folder, "parts"), *recipe)
    shutil.rmtree(folder / "parts" / "checkpoint-4")
    run(*pretrain_arguments(folder, "parts"), *recipe, "--resume")

    whole, parts = (load_file(folder / n / "model.safetensors") for n in ("whole", "parts"))
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


@pytest.fixture
def spelled(folder: Path) -> Path:
    """The folder, with a text of words that share pieces."""
    lines = ["the lower house", "a low house", "the new lower", "the newer low", "a new house"]
    (folder / "text.txt").write_text("\n".join(lines * 8) + "\n")
    return folder


def units_arguments(folder: Path, output: str, units: str) -> list[object]:
    return [*pretrain_arguments(folder, output), "--batch-size", 4, "--units", units]


@pytest.mark.parametrize("units", ["words", "pieces"])
def test_pretrain_has_a_vector_for_each_word_or_piece(spelled: Path, units: str) -> None:
    run(*units_arguments(spelled, "model", units))

    model, tokenizer, vocabulary = load_language_model(str(spelled / "model"))
    assert model.config.char_embedding_size == 0
    table = model.elmo.token_encoder.word_embedding.weight
    assert table.shape == (len(vocabulary) + 1, model.config.projection_size)
    unit = vocabulary.words[-1]
    ids = tokenizer([["<S>", unit, "xyz"]], is_split_into_words=True)["word_input_ids"]
    expected = [1 + vocabulary.words.index(word) for word in ("<S>", unit, "<UNK>")]
    assert [list(row) for row in ids] == [expected]


@pytest.mark.parametrize("units", ["words", "pieces"])
def test_spacy_has_a_row_for_each_token_of_a_model_over_words_or_pieces(
    spelled: Path, units: str
) -> None:
    run(*units_arguments(spelled, "model", units))

    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"name": str(spelled / "model")}})
    assert nlp("The newest lower house.").tensor.shape == (5, 16)


@pytest.mark.parametrize("units", ["words", "pieces"])
def test_pretrain_learns_from_words_or_pieces(spelled: Path, units: str) -> None:
    perplexities = []
    for steps in (1, 60):
        rest = ["--max-steps", steps, "--learning-rate", 0.05, "--warmup-steps", 0]
        run(*units_arguments(spelled, f"model-{steps}", units), *rest)
        output = run("evaluate", spelled / "text.txt", "--model", spelled / f"model-{steps}")
        perplexities.append(float(output.split("average")[1].split()[0]))

    assert perplexities[1] < 0.7 * perplexities[0]


def test_pretrain_splits_unknown_words_into_pieces(spelled: Path) -> None:
    run(*units_arguments(spelled, "model", "pieces"))

    _, _, vocabulary = load_language_model(str(spelled / "model"))
    (pieces,) = vocabulary.read(lambda _: iter([["lowhouse", "the"]]))(None)
    assert set(pieces) <= set(vocabulary.words) - {"<UNK>"}
    assert "".join(pieces).replace("##", "") == "lowhousethe"
    assert "lowhouse" not in pieces


def test_evaluate_and_score_split_words_into_the_pieces_of_the_model(spelled: Path) -> None:
    run(*units_arguments(spelled, "model", "pieces"))
    (spelled / "odd.txt").write_text("newest\n")
    loaded = load_language_model(str(spelled / "model"))
    (pieces,) = loaded[-1].read(lambda _: iter([["newest"]]))(None)

    assert f"{len(pieces) + 1}" in run(
        "evaluate", spelled / "odd.txt", "--model", spelled / "model"
    )
    lines = run("score", spelled / "odd.txt", "--model", spelled / "model").splitlines()
    assert [line.split("\t")[0] for line in lines[1:]] == pieces


def test_pretrain_over_pieces_goes_on_exactly(spelled: Path) -> None:
    run(*units_arguments(spelled, "whole", "pieces"))
    run(*units_arguments(spelled, "parts", "pieces"), "--save-every", 2)
    shutil.rmtree(spelled / "parts" / "checkpoint-4")
    run(*units_arguments(spelled, "parts", "pieces"), "--save-every", 2, "--resume")

    whole, parts = (load_file(spelled / n / "model.safetensors") for n in ("whole", "parts"))
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def test_a_checkpoint_with_damaged_pieces_is_skipped(spelled: Path) -> None:
    run(*units_arguments(spelled, "whole", "pieces"), "--save-every", 2)
    last = max((spelled / "whole").glob("checkpoint-*"), key=lambda x: int(x.name.split("-")[1]))
    (last / "pieces.json").write_bytes(b"")
    (spelled / "whole" / "model.safetensors").unlink()
    with pytest.warns(UserWarning, match=r"Skipping .*: missing or damaged: pieces.json"):
        run(*units_arguments(spelled, "whole", "pieces"), "--save-every", 2, "--resume")
    assert (spelled / "whole" / "model.safetensors").exists()


def test_pretrain_trains_a_model_over_pieces_on_with_its_pieces(spelled: Path) -> None:
    run(*units_arguments(spelled, "model", "pieces"))
    arguments = pretrain_arguments(spelled, "more")
    place = arguments.index("--config")
    arguments[place : place + 4] = ["--from", spelled / "model"]
    (spelled / "valid.txt").write_text("newest house\n")
    run(*arguments, "--batch-size", 4, "--valid", spelled / "valid.txt", "--evaluate-every", 2)

    old, new = (TargetVocabulary.from_file(spelled / name) for name in ("model", "more"))
    assert new.words == old.words
    assert (spelled / "more" / "pieces.json").read_text() == (
        spelled / "model" / "pieces.json"
    ).read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--units", "words", "--char-noise", 0.1], "Expected --char-noise for --units characters"),
        (["--units", "pieces", "--vocab", "v.txt"], "Expected --vocab-size with --units pieces"),
    ],
)
def test_pretrain_refuses_options_that_do_not_fit_the_units(
    options: list[object], message: str, folder: Path
) -> None:
    assert message in " ".join(fail(*pretrain_arguments(folder, "x"), *options).split())


def test_pretrain_adds_no_noise_to_the_characters_of_a_model_over_words(spelled: Path) -> None:
    run(*units_arguments(spelled, "model", "words"))
    arguments = pretrain_arguments(spelled, "more")
    place = arguments.index("--config")
    arguments[place : place + 4] = ["--from", spelled / "model"]
    message = fail(*arguments, "--char-noise", 0.5)
    assert "Expected --char-noise with a model of characters" in " ".join(message.split())


def test_pretrain_keeps_the_units_of_a_model(folder: Path, trained: Path) -> None:
    arguments = pretrain_arguments(folder, "more")
    place = arguments.index("--config")
    arguments[place : place + 4] = ["--from", trained, "--units", "words"]
    assert "Expected --units without --from" in " ".join(fail(*arguments).split())


def test_pretrain_without_a_gpu_computes_on_the_cpu(folder: Path) -> None:
    arguments = pretrain_arguments(folder, "model")
    arguments.remove("--cpu")
    run(*arguments, "--bfloat16", "--max-steps", 1, "--batch-size", 4)
    assert (folder / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize("was_on", [False, True])
def test_small_numbers_are_flushed_only_while_training(was_on: bool) -> None:
    def is_flushed() -> bool:
        return bool(torch.tensor(1e-30) * 1e-12 == 0)

    torch.set_flush_denormal(was_on)
    try:
        with flush_denormal():
            assert is_flushed()
        assert is_flushed() == was_on
    finally:
        torch.set_flush_denormal(False)


def test_mistakes_are_told_without_a_traceback(folder: Path, trained: Path) -> None:
    assert "either --train or --dataset" in fail("pretrain", "--output", folder / "x")
    for option in ("--patience", "--evaluate-every"):
        message = " ".join(fail(*pretrain_arguments(folder, "x"), option, 1).split())
        assert f"Expected --valid together with {option}" in message
    both = ["--valid", folder / "text.txt", "--save-every", 1]
    message = " ".join(fail(*pretrain_arguments(folder, "x"), *both).split())
    assert "Expected --evaluate-every in place of --save-every" in message
    assert "holds checkpoints of a training. Go on with --resume" in fail(
        *pretrain_arguments(folder, "model")
    )


def test_help_shows_how_to_use_the_command() -> None:
    assert "python -m hf_elmo pretrain" in run("pretrain", "--help")


@pytest.mark.slow
@pytest.mark.parametrize("negatives", [0, 4])
def test_two_processes_train_as_one_with_the_same_rows(folder: Path, negatives: int) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    for output, processes, batch_size in (("one", 1, 4), ("two", 2, 2)):
        arguments = pretrain_arguments(folder, output)
        rest = ["--batch-size", str(batch_size), "--negatives", str(negatives)]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(processes), "-m", "hf_elmo"),
                *map(str, arguments),
                *rest,
            ],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert not done.returncode, done.stderr

    one, two = (load_file(folder / name / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert {path.name for path in (folder / "two").glob("checkpoint-4/bilm_state_*")} == {
        "bilm_state_0.safetensors",
        "bilm_state_1.safetensors",
    }
    message = fail(*pretrain_arguments(folder, "two"), *rest, "--resume")
    assert "Expected 2 processes, as many as wrote" in message


def test_a_model_over_pieces_keeps_its_pieces(spelled: Path) -> None:
    run(*units_arguments(spelled, "model", "pieces"))
    text = ["pretrain", "--train", spelled / "text.txt", "--output", spelled / "other", "--cpu"]
    rest = ["--from", spelled / "model", "--vocab", spelled / "model" / "target_vocab.txt"]
    assert "Expected --from without --vocab" in fail(*text, *rest)

import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from convert.conversion import convert_checkpoint
from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoTokenizer
from hf_elmo.language_model.models import load_language_model
from hf_elmo.language_model.perplexity import LossSum, evaluate_stream, evaluate_text
from hf_elmo.language_model.scores import SentenceScores
from hf_elmo.language_model.vocabulary import TargetVocabulary
from hf_elmo.language_model.window_streams import SentenceStream, WindowCollator, WindowStream
from hf_elmo.language_model.windowed_model import WindowedLanguageModel
from hf_elmo.text.text_reader import read_files

# bilm-tf prints perplexities as float32 means of float32 losses.
PERPLEXITY_TOLERANCE = 1e-4
STEP_TOLERANCE = 1e-5  # of targets' losses and top outputs, as the two programs' own difference

BILM_TF_PERPLEXITIES = [
    ("train_tiny", 1, 101.43804),
    ("train_tiny", 4, 101.758415),
    ("train_tiny", 16, 103.16805),
    ("train_tiny", 64, 106.46209),
    ("one_layer", 16, 208.7718),
    ("noproj", 16, 221.63481),
    ("uni", 16, 241.07944),
    ("word", 16, 194.43208),
]

Loaded = tuple[ElmoForPreTraining, Any, Any]


@pytest.fixture(scope="module")
def load(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    """Convert a checkpoint that bilm-tf's trainer wrote, and load it."""
    checkpoints = shared / "oracle" / "tf_checkpoints"
    folder = tmp_path_factory.mktemp("converted")

    def load_checkpoint(name: str) -> Loaded:
        if not (folder / name).exists():
            source = checkpoints / name / "ckpt"
            convert_checkpoint(
                source if source.exists() else source.parent,
                folder / name,
                vocabulary=checkpoints / "train_tiny" / "vocab.txt",
            )
        return load_language_model(str(folder / name))

    return load_checkpoint


@pytest.fixture
def heldout(shared: Path) -> Path:
    return shared / "oracle" / "tf_checkpoints" / "train_tiny" / "heldout.txt"


@pytest.mark.parametrize(("name", "batch_size", "perplexity"), BILM_TF_PERPLEXITIES)
def test_the_stream_has_the_perplexity_that_bilm_tf_reports(
    load: Callable[[str], Loaded], heldout: Path, name: str, batch_size: int, perplexity: float
) -> None:
    result = evaluate_stream(*load(name), read_files([heldout]), batch_size=batch_size)

    assert result.average == pytest.approx(perplexity, rel=PERPLEXITY_TOLERANCE)


def test_each_direction_has_the_perplexity_that_bilm_tf_reports(
    load: Callable[[str], Loaded], heldout: Path
) -> None:
    result = evaluate_stream(*load("train_tiny"), read_files([heldout]), batch_size=1)

    assert result.forward == pytest.approx(102.532472, rel=PERPLEXITY_TOLERANCE)
    assert result.backward == pytest.approx(100.355282, rel=PERPLEXITY_TOLERANCE)


@pytest.mark.parametrize("window", [1, 20])
def test_windows_compute_the_steps_of_bilm_tf(
    load: Callable[[str], Loaded], heldout: Path, shared: Path, window: int
) -> None:
    model, tokenizer, vocabulary = load("train_tiny")
    steps = np.load(shared / "oracle" / "tf_checkpoints" / "train_tiny" / "lm_steps_bs4.npz")
    stream = WindowStream(
        SentenceStream(read_files([heldout]), num_passes=1),
        SentenceStream(read_files([heldout]), num_passes=1),
        vocabulary,
        num_rows=4,
        window=window,
        feed=1,
    )
    runner = WindowedLanguageModel(model).eval()

    for start, batch in zip(
        range(0, 60, window), map(WindowCollator(tokenizer), stream), strict=False
    ):
        expected = {name: torch.from_numpy(steps[name][start : start + window]) for name in steps}
        state = runner.state
        with torch.no_grad():
            losses = runner(**batch)
            runner.state = state
            inputs = (batch[f"{kind}_inputs"] for kind in ("forward", "backward"))
            tops = runner.advance(*inputs, batch["input_ids"], None)
        for direction, suffix, long_suffix in ((0, "f", ""), (1, "b", "_rev")):
            kind = ("forward", "backward")[direction]
            boundaries = torch.tensor([[259, 257, 260], [259, 258, 260]])
            table = torch.cat([_fill(boundaries), batch["input_ids"]])
            characters = table[batch[f"{kind}_inputs"]] - 1
            assert torch.equal(characters, expected[f"chars{long_suffix}"].long())
            assert torch.equal(batch[f"{kind}_targets"], expected[f"next{long_suffix}"].long())
            _assert_close(losses[direction].mean(dim=1), expected[f"loss_{suffix}"])
            _assert_close(tops[direction], expected[f"out_{suffix}"])


def _fill(rows: torch.Tensor) -> torch.Tensor:
    filled = torch.full((len(rows), 50), 261)
    filled[:, : rows.shape[1]] = rows
    return filled


def _assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=STEP_TOLERANCE, atol=STEP_TOLERANCE)


def test_sentences_are_evaluated_alike_in_any_order(
    load: Callable[[str], Loaded], heldout: Path
) -> None:
    loaded = load("train_tiny")
    text = read_files([heldout])

    result = evaluate_text(*loaded, text)
    shuffled = evaluate_text(*loaded, lambda _: text(Random(1)))

    assert shuffled.average == pytest.approx(result.average, rel=1e-6)
    assert shuffled.per_word == pytest.approx(result.per_word, rel=1e-6)


def test_the_average_is_that_of_the_losses_of_both_directions(
    load: Callable[[str], Loaded], heldout: Path
) -> None:
    result = evaluate_text(*load("train_tiny"), read_files([heldout]))

    assert result.backward is not None
    mean = (math.log(result.forward) + math.log(result.backward)) / 2
    assert result.average == pytest.approx(math.exp(mean))


def test_files_of_another_model_are_refused_in_both_protocols(
    load: Callable[[str], Loaded],
) -> None:
    model, tokenizer, vocabulary = load("train_tiny")
    others = [
        (model, tokenizer, TargetVocabulary(vocabulary.words[:-1])),
        (model, ElmoTokenizer(word_start_char_id=257), vocabulary),
    ]
    for loaded in others:
        with pytest.raises(ValueError, match=r"Expected a (vocabulary of|tokenizer with)"):
            evaluate_text(*loaded, lambda _: iter([["a"]]))
        with pytest.raises(ValueError, match=r"Expected a (vocabulary of|tokenizer with)"):
            evaluate_stream(*loaded, lambda _: iter([["a"]]), batch_size=1)


def test_boundaries_in_the_text_do_not_count_as_words_in_either_protocol(
    load: Callable[[str], Loaded],
) -> None:
    loaded = load("train_tiny")
    sentence = ["the", "<S>", "old", "man", "</S>", "."]
    results = (
        evaluate_text(*loaded, lambda _: iter([sentence])),
        evaluate_stream(*loaded, lambda _: iter([sentence]), batch_size=1),
    )
    assert results[0].per_word == pytest.approx(results[1].per_word, rel=1e-5)


def test_a_perplexity_beyond_all_floats_is_infinite() -> None:
    scores = SentenceScores(["a"], torch.tensor([-800.0, 0.0]), torch.tensor([0.0, -1e5]), None)
    assert scores.pseudo_perplexity == math.inf
    sums = LossSum()
    sums.add([-scores.forward, -scores.backward], list(torch.eye(2, dtype=torch.bool)))
    result = sums.perplexity()
    assert (result.average, result.per_word, result.backward) == (math.inf,) * 3
    assert result.forward == pytest.approx(math.exp(400))


def test_a_unidirectional_biLM_has_no_backward_perplexity(  # noqa: N802
    load: Callable[[str], Loaded], heldout: Path
) -> None:
    result = evaluate_stream(*load("uni"), read_files([heldout]), batch_size=16)

    assert result.backward is None
    assert result.average == result.forward


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "One sentence .\n",
            "a sentence for each of the 2 rows of the batch, got 1. Use a",
        ),
        ("", "Expected sentences to evaluate, got none"),
    ],
)
def test_less_text_than_rows_is_an_error(
    tmp_path: Path, tiny_config: ElmoConfig, lines: str, message: str
) -> None:
    (tmp_path / "short.txt").write_text(lines)
    vocabulary = TargetVocabulary(["<S>", "</S>", "<UNK>"])
    tiny_config.vocab_size = len(vocabulary)
    model = ElmoForPreTraining(tiny_config).eval()

    with pytest.raises(ValueError, match=message):
        evaluate_stream(
            model,
            ElmoTokenizer(),
            vocabulary,
            read_files([tmp_path / "short.txt"]),
            batch_size=2,
        )


@pytest.mark.parametrize(("batch_size", "message"), [(1, ""), (2, "6 of 12 predictions were ev")])
def test_a_text_of_which_much_is_left_out_gives_a_warning(
    tmp_path: Path,
    tiny_config: ElmoConfig,
    caplog: pytest.LogCaptureFixture,
    batch_size: int,
    message: str,
) -> None:
    (tmp_path / "short.txt").write_text("a b\na b c d e f g h\n")
    vocabulary = TargetVocabulary(["<S>", "</S>", "<UNK>"])
    tiny_config.vocab_size = len(vocabulary)
    model = ElmoForPreTraining(tiny_config).eval()
    text = read_files([tmp_path / "short.txt"])
    evaluate_stream(model, ElmoTokenizer(), vocabulary, text, batch_size=batch_size)
    assert message in caplog.text
    assert bool(message) == bool(caplog.text)

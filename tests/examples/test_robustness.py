"""examples/robustness: misspellings of words, and encoders compared on them."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

from hf_elmo import ElmoConfig
from hf_elmo.__main__ import app

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "robustness"
SENTENCE = "Several children were walking through the old garden of 1914 yesterday ."
WORDS = SENTENCE.split()
OPTIONS = ["--max-steps", "2", "--batch-size", "2", "--negatives", "0", "--cpu"]


@pytest.fixture
def noise(load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load("noise")
    known = {word.lower(): [f"{word.lower()}x"] for word in WORDS}
    monkeypatch.setattr(module, "read_misspellings", lambda: known)
    return module


SYNTHETIC = ["swap", "drop", "repeat", "add", "keyboard", "middle"]


@pytest.mark.parametrize("name", [*SYNTHETIC, "natural"])
def test_noise_changes_words_of_four_letters_and_more(name: str, noise: ModuleType) -> None:
    found = noise.misspell_words(WORDS, [name], 1.0, seed=1)

    assert len(found) == len(WORDS)
    for word, wrong in zip(WORDS, found, strict=True):
        assert (wrong != word) == (word.isalpha() and len(word) >= 4)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_noise_keeps_the_first_and_the_last_letter(name: str, noise: ModuleType) -> None:
    for seed in range(50):
        for word, wrong in zip(WORDS, noise.misspell_words(WORDS, [name], 1.0, seed), strict=True):
            assert (wrong[0], wrong[-1]) == (word[0], word[-1])


@pytest.mark.parametrize(
    ("name", "growth"), [("swap", 0), ("drop", -1), ("repeat", 1), ("add", 1), ("keyboard", 0)]
)
def test_noise_makes_one_error_in_a_word(name: str, growth: int, noise: ModuleType) -> None:
    found = noise.misspell_words(["children"], [name], 1.0, seed=1)[0]
    assert len(found) == len("children") + growth


def test_words_misspelt_at_a_low_level_are_also_misspelt_at_a_high_one(noise: ModuleType) -> None:
    low, high = (noise.misspell_words(WORDS * 20, ["swap"], x, seed=1) for x in (0.2, 0.6))

    changed = [number for number, word in enumerate(WORDS * 20) if low[number] != word]
    assert 10 < len(changed) < 40  # of 120
    assert [low[number] for number in changed] == [high[number] for number in changed]
    assert sum(word != wrong for word, wrong in zip(WORDS * 20, high, strict=True)) > 55


def test_a_key_is_hit_beside_the_right_one(noise: ModuleType) -> None:
    rng = noise.random.Random(0)
    assert {noise.hit_neighbour("agb", rng)[1] for _ in range(200)} == set("tyfhvb")


def test_the_vector_of_a_word_is_made_from_its_pieces(load: Callable[[str], ModuleType]) -> None:
    join = load("encoders").join_pieces
    rows = np.array([[1.0], [2.0], [4.0], [6.0]])
    for choice, expected in (("first", [1, 2]), ("last", [1, 6]), ("mean", [1, 4])):
        assert join(rows, [0, 1, 1, 1], 2, choice)[:, 0].tolist() == expected


def test_areas_are_means_over_the_levels(load: Callable[[str], ModuleType]) -> None:
    pytest.importorskip("matplotlib")
    report = load("report")
    scores = np.array([[[80.0, 60.0, 40.0, 20.0, 0.0]]])
    assert report.measure_area(scores, [0]).tolist() == pytest.approx([50])
    assert report.measure_area(scores, [0], is_normalised=False).tolist() == pytest.approx([40])


def test_encoders_are_compared_on_the_same_examples(load: Callable[[str], ModuleType]) -> None:
    pytest.importorskip("matplotlib")
    report = load("report")
    counts = np.ones((7, 5, 3, 100, 2), np.int32)  # always right
    worse = counts.copy()
    worse[:, 1:, :, ::2, 0] = 0  # with noise, half as often

    found = report.compare({"characters": counts, "words": worse})

    assert found["words"]["curve"][0] == [100, 100, 100]
    value, low, high = found["words"]["kept, synthetic, behind"]
    assert value == 43.75  # half of it at four of five levels, the first of which counts half
    assert 30 < low < value < high < 57
    assert found["words"]["mean, natural"][0] == 56.25


def write_data(data: Path) -> None:
    """Write a few examples of each task."""
    tags = "".join(
        f"{i}\t{w}\t_\t{'NOUN' if w.islower() else 'X'}\n" for i, w in enumerate(WORDS, 1)
    )
    texts = {
        "ewt/en_ewt-ud-{}.conllu": f"{tags}\n" * 3,
        "ner/wikigold/{}.conll": ("Several\tO\nold\tO\nBerlin\tB-LOC\n\n" * 4),
        "sst5/{}.txt": "(3 (2 Lovely) (2 garden))\n(1 (2 Dreadful) (2 garden))\n" * 3,
        "trec/{}.txt": "DESC:manner How does this work ?\nENTY:animal What animal barks ?\n" * 10,
    }
    for name, text in texts.items():
        for part in ("train", "dev", "test"):
            path = data / f"{name.format(part)}.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(text.encode()))


@pytest.mark.slow
@pytest.mark.usefixtures("noise")
def test_encoders_are_trained_measured_and_compared(
    load: Callable[[str], ModuleType], tmp_path: Path, tiny_config: ElmoConfig
) -> None:
    pytest.importorskip("gensim")
    pytest.importorskip("matplotlib")
    encoders, measure, report = (load(name) for name in ("encoders", "measure", "report"))
    tiny_config.to_json_file(tmp_path / "tiny.json")
    text = tmp_path / "text.txt"
    text.write_text((" ".join(WORDS) + "\n") * 20)
    for name in ("characters", "characters_noise", "pieces", "words"):
        units, _, noise = name.partition("_")
        command = ["pretrain", "--train", str(text), "--config", str(tmp_path / "tiny.json")]
        command += ["--units", units, "--output", str(tmp_path / name), "--vocab-size", "50"]
        command += ["--char-noise", "0.2"] if noise else []
        assert CliRunner().invoke(app, [*command, *OPTIONS]).exit_code == 0
    for kind in ("word2vec", "fasttext"):
        encoders.main(text, tmp_path / kind, kind, size=8, rows=20, parts=10, epochs=1)
    write_data(tmp_path)

    folders = [tmp_path / name for name in report.ENCODERS]
    for _ in range(2):
        measure.main(tmp_path, tmp_path / "results", folders, max_train=20, max_test=8)
        times = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").iterdir()}
    assert len(times) == 6 + 6 * 4
    report.main(tmp_path / "results", tmp_path / "report.json", tmp_path / "plot.svg")

    found = json.loads((tmp_path / "report.json").read_text())
    sizes = {name: one["parameters"] for name, one in found["encoders"].items()}
    assert sizes["fasttext"] == 20 * 8
    assert found["encoders"]["pieces"]["vectors"].keys() == {"first", "last", "mean"}
    for heads in found["tasks"].values():
        assert list(heads["clean"]) == list(report.ENCODERS)
        assert heads["clean"]["characters"]["kept, synthetic, behind"] == [0, 0, 0]
        low, high = heads["noised"]["words"]["kept, natural"][1:]
        assert low <= high
    assert "characters, trained with errors" in (tmp_path / "plot.svg").read_text()
    scores, leads = report.format_scores(found), report.format_leads(found)
    assert scores.count("\n") == 1 + 6
    assert leads.count("\n") == 1 + 5 * 3

"""examples/paper: runs are made once and compared; tables and figures show what there is."""

import gzip
import json
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from hf_elmo.tasks.readers import LabelledSentence

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "paper"
PARTS = ("train", "dev", "test")
TABLES = [f"table_{number}" for number in range(1, 8)]
TABLES += ["table_epochs", "figure_1", "figure_2"]
WORDS = [("The", "DT"), ("old", "JJ"), ("play", "NN"), ("will", "MD"), ("play", "VB"), (".", ".")]
WORDS += [(".", "."), (".", ".")]


@pytest.fixture
def runs(load: Any) -> ModuleType:
    return load("runs")


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    (tmp_path / "vectors-100.txt").write_text("play 1 2\nold 3 4\nnew 3 5\n")
    path = tmp_path / "vectors.txt"
    path.write_text("play 1 2 3\nold 3 4 5\nnew 3 5 4\n")
    return path


def write_data(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def make_counts(*sides: Sequence[bool]) -> np.ndarray:
    """Make the counts of an accuracy, one seed a side, a text an example."""
    return np.array([[[(100 * right, 100) for right in side]] for side in sides])


def compare(runs: ModuleType, counts: np.ndarray) -> tuple[float, float, float]:
    low, high, p = runs.compare(lambda x: runs.score("sentiment", x), *counts)
    return low / 100, high / 100, p


def test_the_bootstrap_finds_the_interval_of_paired_differences(runs: ModuleType) -> None:
    rng = np.random.default_rng(0)
    static, elmo = rng.random(400) < 0.6, rng.random(400) < 0.7
    low, high, p = compare(runs, make_counts(static, elmo))
    differences = elmo.astype(int) - static
    error = np.std(differences) / 20
    expected = norm.interval(0.95, np.mean(differences), error)
    assert (low, high) == pytest.approx(expected, abs=0.01)
    assert p == pytest.approx(2 * norm.sf(np.mean(differences) / error), abs=0.02)


def test_equal_seeds_leave_the_interval_as_it_is(runs: ModuleType) -> None:
    rng = np.random.default_rng(0)
    once = make_counts(rng.random(400) < 0.6, rng.random(400) < 0.7)
    three = np.repeat(once, 3, axis=1)
    assert compare(runs, three)[:2] == pytest.approx(compare(runs, once)[:2], abs=0.01)


def test_the_interval_covers_the_variation_between_seeds(runs: ModuleType) -> None:
    static, gains = [False] * 900, (0, 180, 540)
    seeds = [make_counts(static, [True] * x + [False] * (900 - x)) for x in gains]
    low, high, p = compare(runs, np.concatenate(seeds, axis=1))
    # All three draws are the first seed in 1 of 27 resamples, and the last one in another.
    assert (low, high) == pytest.approx((0, 0.6), abs=0.04)
    assert p == pytest.approx(2 / 27, abs=0.03)


def test_p_is_a_probability_that_the_resamples_can_tell(runs: ModuleType) -> None:
    wrong, right = [False] * 20, [True] * 20
    assert compare(runs, make_counts(right, right))[2] == 1
    assert compare(runs, make_counts(wrong, right))[2] == 2 / 1001


def test_examples_of_one_text_are_counted_together(runs: ModuleType) -> None:
    examples = [LabelledSentence([word], "a") for word in ("x", "y", "x", "z")]
    counts = runs.count_by_text("sentiment", examples, ["a", "a", "b", "b"])
    assert counts == [[1, 2], [1, 1], [0, 1]]


def test_the_relative_reduction_is_of_the_error(runs: ModuleType) -> None:
    assert runs.reduce_error(80, 85) == pytest.approx(25)


def test_each_document_is_the_test_of_one_fold_and_unseen_in_its_training(
    runs: ModuleType, tmp_path: Path
) -> None:
    for part, name in enumerate(runs.DATA["coref"][:3]):
        text = "".join(
            f"#begin document (d{part}{row})\nd\t0\t0\tIt\t-\n\n#end document\n" for row in range(8)
        )
        write_data(tmp_path / name, text)
    tested = []
    for fold in range(5):
        run = runs.Run("coref", "elmo", fold=fold)
        parts = [
            {document.name for document in runs.TASKS["coref"].read(Path(name))}
            for name in runs.list_files(run, tmp_path, tmp_path / "results")
        ]
        assert len(set.union(*parts)) == sum(map(len, parts)) == 24
        assert min(map(len, parts)) >= 2
        tested += sorted(parts[2])
    assert len(tested) == len(set(tested)) == 24


def test_a_sample_is_a_part_of_a_larger_one_and_is_repeated(runs: ModuleType) -> None:
    text = "".join(f"neutral\tpair {number}\n" for number in range(1000))
    small, large = (
        runs.draw_sample(runs.Run("entailment", "elmo", 1, share), text).splitlines()
        for share in (0.01, 0.3)
    )
    assert (len(small), len(set(small))) == (200, 10)
    assert (len(large), len(set(large))) == (600, 300)
    assert set(small) < set(large)


def test_a_sample_of_entailment_has_all_labels(runs: ModuleType) -> None:
    pairs = [f"neutral\tpair {number}\n" for number in range(998)]
    text = "".join(["entailment\tone\n", *pairs, "contradiction\ttwo\n"])
    sample = runs.draw_sample(runs.Run("entailment", "elmo", 1, 0.01), text).splitlines()
    assert {line.partition("\t")[0] for line in sample} == {
        "entailment",
        "neutral",
        "contradiction",
    }
    assert (len(sample), len(set(sample))) == (200, 10)


def test_a_sample_of_questions_is_of_paragraphs(runs: ModuleType) -> None:
    articles = [
        {"paragraphs": [{"context": f"{a}{b}", "qas": [{"id": f"{a}{b}"}]} for b in range(5)]}
        for a in range(4)
    ]
    run = runs.Run("squad", "elmo", 1, 0.5)
    sample = json.loads(runs.draw_sample(run, json.dumps({"data": articles})))
    paragraphs = [x for article in sample["data"] for x in article["paragraphs"]]
    assert len(paragraphs) == 2 * len({x["context"] for x in paragraphs}) == 20
    assert len({question["id"] for x in paragraphs for question in x["qas"]}) == 20


def test_processor_minutes_are_those_of_runs_on_a_cpu(load: Any) -> None:
    show = load("table_1").show_minutes
    runs = [{"minutes": 4.0}, {"minutes": 6.0, "device": "cpu"}, {"minutes": 1.0, "device": "H100"}]
    assert (show(runs), show(runs[2:])) == ("5", "")


def test_results_of_another_bilm_are_not_taken_for_those_of_this_one(
    runs: ModuleType, load: Any, tmp_path: Path
) -> None:
    settings = runs.Settings(tmp_path, tmp_path, tmp_path)
    load("layers").make_once("table_0", lambda _: [1], settings)
    load("layers").make_once("table_0", lambda _: [2], settings)
    assert load("layers").read_table("table_0", tmp_path) == [1]
    for other in ({"model": "mine"}, {"options": ["--batch-size", "1"]}):
        with pytest.raises(ValueError, match="Expected another folder for results"):
            load("layers").make_once("table_0", lambda _: [2], settings._replace(**other))
        with pytest.raises(ValueError, match="Expected another folder for results"):
            runs.make(runs.Run("ner", "elmo"), settings._replace(**other))
    mine = settings._replace(results=tmp_path / "mine", model="mine")
    for _ in range(2):
        load("layers").make_once("table_0", lambda _: [3], mine)


def test_no_run_starts_after_the_deadline(runs: ModuleType, tmp_path: Path) -> None:
    settings = runs.Settings(tmp_path, tmp_path, tmp_path, deadline=time.monotonic())
    assert not runs.make(runs.Run("ner", "elmo"), settings)
    assert list(tmp_path.iterdir()) == []


def test_the_queue_has_each_run_of_all_tables_once(load: Any) -> None:
    queue = load("all").list_queue()
    tables = [load(name) for name in TABLES if name not in ("table_4", "table_5", "table_6")]
    assert set(queue) == {run for table in tables for run in table.RUNS}
    assert len(set(queue)) == len(queue)


def test_a_run_has_the_epochs_of_its_task_and_side(runs: ModuleType) -> None:
    assert runs.choose_epochs("squad", "static") == runs.choose_epochs("squad", "static-100") == 24
    assert runs.choose_epochs("squad", "elmo") == 9
    assert runs.choose_epochs("squad", "top") == 9
    assert runs.choose_epochs("squad", "input") == 24
    assert runs.choose_epochs("squad", "words-alone") == 24
    (run, *_) = runs.list_runs("squad", ["static"])
    assert runs.list_recipe(run) == [
        *("--schedule", "linear", "--epochs", "24", "--patience", "24")
    ]


def test_runs_of_other_lengths_have_other_folders(runs: ModuleType, tmp_path: Path) -> None:
    lengths = [runs.Run("ner", "static", epochs=number) for number in (25, 50, 100)]
    assert len({run.find_folder(tmp_path) for run in lengths}) == 3


def test_narrow_vectors_are_beside_the_others(
    runs: ModuleType, tmp_path: Path, vectors: Path
) -> None:
    settings = runs.Settings(tmp_path, tmp_path, vectors)
    assert runs.find_vectors(runs.Run("ner", "elmo"), settings) == vectors
    narrow = runs.find_vectors(runs.Run("ner", "elmo-100"), settings)
    assert narrow == tmp_path / "vectors-100.txt"
    narrow.unlink()
    with pytest.raises(FileNotFoundError, match="make them by train_vectors"):
        runs.find_vectors(runs.Run("ner", "elmo-100"), settings)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Make a page with a table, and results without runs of task models."""
    for path in (FOLDER / "results").glob("table_*.json"):
        shutil.copy(path, tmp_path)
    page = tmp_path / "paper.md"
    page.write_text("Before\n<!-- table_6 -->\nold\n<!-- end -->\nafter\n")
    return page


def test_all_stops_at_its_hours_and_updates_the_page(
    load: Any, tmp_path: Path, page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load("all").main(tmp_path, tmp_path, tmp_path, hours=0, page=page)
    assert capsys.readouterr().out == f"0 of {len(load('all').list_queue())} runs are complete.\n"
    text = page.read_text()
    assert "| layer 0, random weights |" in text
    assert "old" not in text
    assert text.startswith("Before\n<!-- table_6 -->\n|")
    assert text.endswith("|\n<!-- end -->\nafter\n")


def test_all_continues_after_a_run_that_fails(
    load: Any,
    tmp_path: Path,
    page: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any) -> bool:
        raise subprocess.CalledProcessError(1, "train")

    monkeypatch.setattr(load("runs"), "make", fail)
    load("all").main(tmp_path, tmp_path, tmp_path, page=page)
    assert capsys.readouterr().err.count("failed: ") == len(load("all").list_queue())


ENTAILMENT = "neutral\tThe old cat .\tIt sat .\nentailment\tA cat .\tNo bank !\n"


def train_all(runs: ModuleType, table: ModuleType, settings: Any, task: str) -> list[Any]:
    """Make the runs of a task with the first seed."""
    chosen = [run for run in table.RUNS if run.task == task and run.seed == 1]
    assert runs.make_runs(chosen, settings)
    return chosen


@pytest.mark.slow
def test_small_versions_of_tables_of_entailment_are_made_once(
    load: Any, runs: ModuleType, tmp_path: Path, tiny_folder: Path, vectors: Path
) -> None:
    for name in runs.DATA["entailment"][:3]:
        write_data(tmp_path / name, 60 * ENTAILMENT)  # a sample of 10 % has both labels
    options = ["--epochs", "2", "--cache-bytes", "100000"]
    results = tmp_path / "results"
    settings = runs.Settings(tmp_path, results, vectors, str(tiny_folder), options=options, jobs=2)
    for _ in range(2):
        made = {
            run
            for name in ("table_2", "table_3", "table_7")
            for run in train_all(runs, load(name), settings, "entailment")
        }
        paths = [path for path in results.glob("*/*") if path.parent.name != "samples"]
        times = {path: path.stat().st_mtime_ns for path in paths}
    assert {path.name for path in times} == {"result.json"}  # models are not kept
    assert {path.parent for path in times} == {run.find_folder(results) for run in made}
    for name in ("table_2", "table_3", "table_7"):
        rows = [x for x in load(name).write(results).splitlines() if x.startswith("| entail")]
        assert all("not run yet" not in row for row in rows)
        assert sum("*" in row for row in rows) == 1
    assert "not run yet" in load("table_2").write(results)  # the other tasks
    known = json.loads((results / "entailment-elmo-1-0.1-30-epochs" / "result.json").read_text())
    assert np.shape(known["counts"]) == (2, 2)  # premises; right and all
    assert np.shape(known["mixes"]) == (2, 4)  # input and output; three layers and gamma
    assert len(known["curve"]) == 2
    assert known["device"]


@pytest.mark.slow
def test_small_versions_of_table_1_and_of_the_figures_are_made(
    load: Any,
    runs: ModuleType,
    tmp_path: Path,
    tiny_folder: Path,
    vectors: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = {"frames": [{"v": 2, "args": [["ARG1", 0, 1]]}]}
    lines = [json.dumps({"tokens": ["A", f"cat{x}", "sat"]} | args) + "\n" for x in range(20)]
    for part, name in zip(PARTS, runs.DATA["srl"], strict=False):
        others = [line.replace("ARG1", "ARG2") for line in lines[:10]] if part == "test" else []
        write_data(tmp_path / name, "".join([*lines, *others]))
    options = ["--epochs", "1", "--cache-bytes", "100000"]
    results = tmp_path / "results"
    settings = runs.Settings(tmp_path, results, vectors, str(tiny_folder), options=options)
    monkeypatch.setitem(load("figure_1").TASKS, "srl", (0.1, 1.0))
    made = [run for run in load("figure_1").list_task("srl") if run.seed == 1]
    assert runs.make_runs(made, settings)
    tabled = train_all(runs, load("table_1"), settings, "srl")
    rows = [x for x in load("table_1").write(results).splitlines() if x.startswith("| roles")]
    assert len(rows) == 2  # with wide and with narrow static vectors
    for row in rows:
        assert row.startswith("| roles | f1 | 1 |")
        assert "81.4 | 84.6 | 17.2 %" in row  # the paper's
    sizes = {
        run.config: json.loads((run.find_folder(results) / "result.json").read_text())["parameters"]
        for run in tabled
    }
    assert sizes["elmo"] > sizes["elmo-100"]
    assert "not run yet" in load("table_1").write(results)
    assert "| roles | input | 0." in load("figure_2").write(results)
    for name in ("figure_1", "figure_2"):
        paths = [tmp_path / f"{number}.svg" for number in range(2)]
        for path in paths:
            load(name).plot(results, path)
        assert len({path.read_text() for path in paths}) == 1


def write_senses(folder: Path) -> None:
    """Write a few sentences in the formats of SemCor, of the test sets and of the "play" probe."""
    tokens, parts = map(list, zip(*WORDS, strict=True))
    uses = [[2, 3, "play", "NOUN", ["play%1"]], [4, 5, "play", "VERB", ["play%2"]]]
    sentence = {"tokens": tokens, "pos": parts, "inst": uses}
    text = "".join(
        json.dumps(sentence | {"id": f"s{x}", "tokens": [str(x), *tokens[1:]]}) + "\n"
        for x in range(20)
    )
    write_data(folder / "semcor_all-words.jsonl.gz", text)
    for name in ("semeval2007", "senseval2", "senseval3", "semeval2013", "semeval2015"):
        rows = [
            sentence | {"id": f"{name}{x}", "inst": [*uses, [1, 2, "old", "ADJ", ["old%3"]]]}
            for x in range(2)
        ]
        write_data(folder / "eval" / f"{name}.jsonl.gz", "\n".join(map(json.dumps, rows)))
    inventory = "lemma\tpos\trank\tkey\nplay\tNOUN\t1\tplay%0\nold\tADJ\t1\told%3\n"
    write_data(folder / "sense_inventory.tsv.gz", inventory)
    probe = "sense_key\tpos\ttarget_index\tsentence\tgloss\n"
    probe += "".join(f"play%{x % 2}\tN\t2\tThe {x} play ends\t\n" for x in range(6))
    write_data(folder / "play_probe.tsv.gz", probe)


@pytest.mark.slow
def test_small_versions_of_tables_of_layers_are_made(
    load: Any, runs: ModuleType, tmp_path: Path, tiny_folder: Path, vectors: Path
) -> None:
    write_senses(tmp_path / "wsd")
    rows = (f"{n}\t{word}\t_\t{tag}" for n, (word, tag) in enumerate(WORDS, start=1))
    tagged = "# text\n" + "\n".join(rows) + "\n\n"
    for part in PARTS:
        write_data(tmp_path / "ewt" / f"en-{part}.conllu.gz", 3 * tagged)
    settings = runs.Settings(tmp_path, tmp_path / "results", vectors, str(tiny_folder))
    for name in ("table_4", "table_5", "table_6"):
        load(name).make(settings)
    table_4, table_5, table_6 = (
        load(name).write(tmp_path / "results") for name in ("table_4", "table_5", "table_6")
    )
    assert "| static | play | old, new |" in table_4 or "| static | play | new, old |" in table_4
    assert "| top layer | " in table_4
    assert re.search(r"part of speech \| most frequent \| 50\.0 \|", table_4)
    assert re.search(r"\| first sense of WordNet \| 33\.3 \|", table_5)  # "old" alone
    assert re.search(r"\| most frequent, no fallback \| 66\.7 \|", table_5)
    assert re.search(r"\| most frequent in SemCor \| 100\.0 \|", table_5)
    assert table_6.count("\n") == 7  # three layers of both
    assert re.search(r"\| layer 1 \| 100\.0 \| 100\.0 \|", table_6)


def test_the_page_shows_what_the_results_give(load: Any, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "paper.md").read_text("utf-8")
    assert all(f"<!-- {name} -->" in page for name in TABLES)
    assert load("all").update(page, FOLDER / "results", tmp_path) == page
    for path in tmp_path.iterdir():
        committed = (ROOT / "docs" / "figures" / path.name).read_bytes()
        versions = {
            re.search(rb"Matplotlib v[\d.]+", svg)[0] for svg in (path.read_bytes(), committed)
        }
        # Another version of matplotlib measures texts differently and so moves all coordinates.
        assert len(versions) > 1 or path.read_bytes() == committed


@pytest.mark.parametrize(
    ("task", "title"),
    [
        ("entailment", "entailment"),
        ("srl", "semantic roles"),
        ("squad", "questions"),
        ("coref", "coreference"),
        ("ner", "entities"),
        ("sentiment", "sentiment"),
    ],
)
def test_the_readme_shows_tasks_with_static_vectors_as_wide_as_elmo(
    task: str, title: str, load: Any, runs: ModuleType
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    sides = load("table_1").read_sides(FOLDER / "results", task)
    static, elmo = (
        np.mean([runs.score(task, seed) for seed in runs.gather_counts(side)]) for side in sides
    )
    (row,) = (line for line in readme.splitlines() if line.startswith(f"| {title}"))
    seeds = {1: "one seed", 2: "two seeds", 3: "three seeds"}[len(sides[0])]
    assert row.endswith(f"({seeds}) | static vectors {static:.1f} | {elmo:.1f} |")
    best = max(load("table_epochs").LENGTHS[task, "static"])
    assert runs.choose_epochs(task, "static") == best  # not a baseline stopped early

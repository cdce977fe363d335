"""examples/tasks: runs are made once, and compared."""

import gzip
import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import norm

from hf_elmo.tasks.data.readers import LabelledSentence

PAGE = "docs/results.md"
PATH = Path(__file__).resolve().parents[2] / "examples" / "tasks" / "table.py"
TEXT = "The\tO\nold\tB-A\ncat\tI-A\n\nNo\tO\nbank\tB-B\n\nA\tO\ncat\tB-A\n"


@pytest.fixture
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("table", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["table"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_table_compares_runs_and_makes_each_once(
    table: ModuleType, tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, results = tmp_path / "data", tmp_path / "results"
    for name in table.DATA["ner"][:3]:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(gzip.compress(TEXT.encode()))
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("cat 1 2\nold 3 4\n")
    options = {"tasks": ["ner"], "seeds": 1, "resamples": 10, "epochs": 1}
    for _ in range(2):
        table.main(data, results, vectors, **options, model=str(tiny_folder))
        times = {path: path.stat().st_mtime_ns for path in results.glob("*/*.json")}
    assert {path.parent.name for path in times} == {"ner-static-1", "ner-elmo-1"}
    known = json.loads((results / "ner-elmo-1" / "result.json").read_text())
    assert np.shape(known["counts"]) == (3, 3)  # sentences; right, gold and found
    assert len(known["mixes"][0]) == 4  # three layers and gamma
    first, first_mix, second, second_mix = capsys.readouterr().out.split("| task ")[1:]
    assert first_mix.strip() == second_mix.strip()
    assert first.strip() == second.strip()
    assert "| ner | f1 | 1 |" in first
    assert "90.2 | 92.2 | 21.0 %" in first  # the paper's
    assert "| ner | input | 0." in first_mix


def make_counts(*sides: Sequence[bool]) -> np.ndarray:
    """Make the counts of an accuracy, one seed a side, a text an example."""
    return np.array([[[(right, 1) for right in side]] for side in sides])


def test_the_bootstrap_finds_the_interval_of_paired_differences(table: ModuleType) -> None:
    rng = np.random.default_rng(0)
    static, elmo = rng.random(400) < 0.6, rng.random(400) < 0.7
    low, high, p = table.compare("sentiment", make_counts(static, elmo), 2000)
    differences = elmo.astype(int) - static
    error = np.std(differences) / 20
    expected = norm.interval(0.95, np.mean(differences), error)
    assert (low, high) == pytest.approx(expected, abs=0.01)
    assert p == pytest.approx(2 * norm.sf(np.mean(differences) / error), abs=0.02)


def test_the_bootstrap_averages_the_seeds(table: ModuleType) -> None:
    static, elmo = [False] * 20 + [True] * 30, [True] * 45 + [False] * 5
    once = make_counts(static, elmo)
    other = make_counts(static, static)
    both = np.concatenate([once, other], axis=1)
    low, high, _ = table.compare("sentiment", once, 200)
    assert table.compare("sentiment", both, 200)[:2] == pytest.approx((low / 2, high / 2))


def test_what_is_asked_of_one_text_is_counted_together(table: ModuleType) -> None:
    examples = [LabelledSentence([word], "a") for word in ("x", "y", "x", "z")]
    counts = table.count_by_text("sentiment", examples, ["a", "a", "b", "b"])
    assert counts == [[1, 2], [1, 1], [0, 1]]


def test_p_is_a_probability_that_the_resamples_can_tell(table: ModuleType) -> None:
    wrong, right = [False] * 20, [True] * 20
    assert table.compare("sentiment", make_counts(right, right), 100)[2] == 1
    assert table.compare("sentiment", make_counts(wrong, right), 100)[2] == 2 / 101


def test_the_relative_reduction_is_of_the_error(table: ModuleType) -> None:
    assert table.reduce_error(0.8, 0.85) == pytest.approx(0.25)


def test_each_document_is_the_test_of_one_fold_and_unseen_in_its_training(
    table: ModuleType, tmp_path: Path
) -> None:
    names = table.DATA["coref"][:3]
    for part, name in enumerate(names):
        text = "".join(
            f"#begin document (d{part}{row})\nd\t0\t0\tIt\t-\n\n#end document\n" for row in range(8)
        )
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    tested = []
    for files in table.list_files(tmp_path, tmp_path / "results", "coref"):
        parts = [
            {document.name for document in table.TASKS["coref"].read(Path(name))}
            for name in files[:3]
        ]
        assert len(set.union(*parts)) == sum(map(len, parts)) == 24
        assert min(map(len, parts)) >= 2
        tested += sorted(parts[2])
    assert len(tested) == len(set(tested)) == 24


def test_questions_are_compared_with_the_best_that_there_is_without_elmo(
    table: ModuleType,
) -> None:
    pages = [PATH.with_name("README.md"), *(PATH.parents[2] / x for x in ("README.md", PAGE))]
    runs, readme, results = (path.read_text(encoding="utf-8") for path in pages)
    (best,) = re.findall(r"\| 16 \| (\S+) \| not run", runs)
    known = table.gather_counts(table.read_runs(PATH.with_name("results"), "squad"))
    equal, elmo = (100 * np.mean([table.score("squad", seed) for seed in side]) for side in known)
    assert equal < float(best) < elmo
    assert re.search(rf"\| question answering .* \| {best} \| {elmo:.1f} \|", readme)
    gain = 100 * table.reduce_error(float(best) / 100, elmo / 100)
    assert f"| {best}, with 16 epochs | {elmo:.1f} ± 0.5, with 9 | {gain:.1f} % |" in results


def test_the_published_table_is_what_its_runs_give(table: ModuleType) -> None:
    page = PATH.with_name("README.md").read_text(encoding="utf-8")
    for task in table.DATA:
        runs = table.read_runs(PATH.with_name("results"), task)
        assert table.write_row(task, runs, 1000) in page
        assert "\n".join(table.write_mixes(task, runs["elmo"])) in page

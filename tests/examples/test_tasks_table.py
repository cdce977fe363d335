"""examples/tasks: runs are made once, and compared."""

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import norm

from hf_elmo.tasks.readers import LabelledSentence

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
    assert len(known["found"]) == 3
    assert len(known["mixes"][0]) == 4  # three layers and gamma
    first, first_mix, second, second_mix = capsys.readouterr().out.split("| task ")[1:]
    assert first_mix.strip() == second_mix.strip()
    assert first.strip() == second.strip()
    assert "| ner | f1 |" in first
    assert "90.2 | 92.2 | 21.0 %" in first  # the paper's
    assert "| ner | input | 0." in first_mix


def test_the_bootstrap_finds_the_interval_of_paired_differences(table: ModuleType) -> None:
    rng = np.random.default_rng(0)
    examples = [LabelledSentence([str(row)], "a") for row in range(400)]
    static = ["a" if row else "b" for row in rng.random(400) < 0.6]
    elmo = ["a" if row else "b" for row in rng.random(400) < 0.7]
    low, high, p = table.compare("sentiment", examples, [static], [elmo], 2000)
    differences = [(b == "a") - (a == "a") for a, b in zip(static, elmo, strict=True)]
    error = np.std(differences) / 20
    expected = norm.interval(0.95, np.mean(differences), error)
    assert (low, high) == pytest.approx(expected, abs=0.01)
    assert p == pytest.approx(2 * norm.sf(np.mean(differences) / error), abs=0.02)


def test_the_bootstrap_draws_all_of_a_text_at_once(table: ModuleType) -> None:
    once = [LabelledSentence([str(row)], "a") for row in range(50)]
    static, elmo = ["b"] * 20 + ["a"] * 30, ["a"] * 45 + ["b"] * 5
    low, high, _ = table.compare("sentiment", once, [static], [elmo], 200)
    again = table.compare("sentiment", once * 9, [static * 9], [elmo * 9], 200)
    assert again[:2] == (low, high)


def test_p_is_a_probability_that_the_resamples_can_tell(table: ModuleType) -> None:
    examples = [LabelledSentence([str(row)], "a") for row in range(20)]
    wrong, right = ["b"] * 20, ["a"] * 20
    assert table.compare("sentiment", examples, [right], [right], 100)[2] == 1
    assert table.compare("sentiment", examples, [wrong], [right], 100)[2] == 2 / 101


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

"""examples/spacy_train: public files become docs, twins differ in ELMo alone, the table is made."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import spacy
import typer
from spacy.tokens import Doc, DocBin
from thinc.api import Config

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "spacy_train"
CONFIGS = ("ewt", "ner", "textcat", "spancat", "english")

# Sentences of our own, in the formats of the public files.
TREEBANK = """# text = Don't look.
1-2	Don't	_	_	_	_	_	_	_	_
1	Do	do	AUX	VB	Mood=Imp	3	aux	_	_
2	n't	not	PART	RB	_	3	advmod	_	_
3	look	look	VERB	VB	_	0	root	_	SpaceAfter=No
4	.	.	PUNCT	.	_	3	punct	_	_

"""
ENTITIES = "Ada	B-PER\nByron	I-PER\nslept	O\n\nNobody	O\n\n"
SPANS = "The	B-PER	O\nking	I-PER	O\nof	I-PER	O\nRome	I-PER	B-GPE\n\n"
TREES = "(3 (2 A) (3 (3 good) (2 film-LRB-)))\n(0 (1 Too) (0 long))\n"
QUESTIONS = "LOC:city Where is Rome ?\nHUM:ind Who was Ada ?\n"


@pytest.fixture
def make_docs(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("make_docs")


@pytest.fixture
def compare(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("compare")


@pytest.fixture
def tables(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("tables")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    files = {
        "ewt/en_ewt-ud-{}.conllu": TREEBANK
        * 40,  # the parser learns no label that is rarer than 30
        "ner/wnut17/{}.conll": ENTITIES * 3,
        "ner/wikigold/{}.conll": ENTITIES * 3,
        "ner/litbank/{}.conll": SPANS * 3,
        "trec/{}.txt": QUESTIONS * 10,
    }
    for path, text in files.items():
        for split in ("train", "test") if "trec" in path else ("train", "dev", "test"):
            file = tmp_path / "data" / path.format(split)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    return tmp_path / "data"


def test_treebank_keeps_words_tags_lemmas_and_heads(make_docs: ModuleType) -> None:
    (doc,) = make_docs.read_treebank(TREEBANK, spacy.blank("en").vocab)
    assert [token.text for token in doc] == ["Do", "n't", "look", "."]
    assert [token.lemma_ for token in doc] == ["do", "not", "look", "."]
    assert [(token.head.i, token.dep_) for token in doc][:2] == [(2, "aux"), (2, "advmod")]
    assert doc.has_unknown_spaces


def test_tags_become_entities(make_docs: ModuleType) -> None:
    docs = list(make_docs.read_entities(ENTITIES, spacy.blank("en").vocab))
    assert [[(e.text, e.label_) for e in doc.ents] for doc in docs] == [[("Ada Byron", "PER")], []]


def test_two_columns_become_spans_within_each_other(make_docs: ModuleType) -> None:
    (doc,) = make_docs.read_spans(SPANS, spacy.blank("en").vocab)
    found = [(span.text, span.label_) for span in doc.spans["sc"]]
    assert found == [("The king of Rome", "PER"), ("Rome", "GPE")]


def test_trees_become_words_and_one_of_five_labels(make_docs: ModuleType) -> None:
    docs = list(make_docs.read_trees(TREES, spacy.blank("en").vocab))
    assert [[token.text for token in doc] for doc in docs] == [
        ["A", "good", "film("],
        ["Too", "long"],
    ]
    assert [max(doc.cats, key=doc.cats.get) for doc in docs] == ["positive", "very negative"]
    assert len(docs[0].cats) == 5


def test_every_tenth_training_doc_is_for_development_where_nothing_else_is(
    make_docs: ModuleType, data: Path
) -> None:
    vocab = spacy.blank("en").vocab
    sizes = [
        len(make_docs.read_split(data, make_docs.FILES["trec"], split, vocab))
        for split in make_docs.SPLITS
    ]
    assert sizes == [18, 2, 20]


def test_files_of_ones_own_become_docs(make_docs: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("good A fine film\nbad Too long\n" * 10)
    (tmp_path / "test.txt").write_text("bad A film\ngood Fine\n")
    setting = "films:labelled:train.txt::test.txt"
    make_docs.main(tmp_path, tmp_path / "corpus", task=[setting])
    files = {path.name: DocBin().from_disk(path) for path in (tmp_path / "corpus/films").iterdir()}
    assert {name: len(docs) for name, docs in files.items()} == {
        **{"train.spacy": 18, "dev.spacy": 2, "test.spacy": 2}
    }
    (doc, _) = files["test.spacy"].get_docs(spacy.blank("en").vocab)
    assert (doc.text, doc.cats) == ("A film ", {"bad": 1.0, "good": 0.0})


def test_lines_end_at_newlines_alone(make_docs: ModuleType) -> None:
    text = "good A\u2028fine\x85film\nbad Too long\n"
    docs = list(make_docs.read_labelled(text, spacy.blank("en").vocab))
    assert [[token.text for token in doc] for doc in docs] == [
        ["A", "fine", "film"],
        ["Too", "long"],
    ]


def test_a_label_without_words_is_an_error(make_docs: ModuleType) -> None:
    with pytest.raises(typer.BadParameter, match="Expected a label and words in each line, got"):
        list(make_docs.read_labelled("good A film\nbad\n", spacy.blank("en").vocab))


def test_starts_of_documents_are_no_sentences(make_docs: ModuleType) -> None:
    docs = list(make_docs.read_entities(f"-DOCSTART-\tO\n\n{ENTITIES}", spacy.blank("en").vocab))
    assert [len(doc.ents) for doc in docs] == [1, 0]


def test_a_named_file_for_development_that_is_absent_is_an_error(
    make_docs: ModuleType, data: Path
) -> None:
    setting = "mine:labelled:trec/train.txt:trec/dve.txt:trec/test.txt"
    _, source = make_docs.parse_source(setting)
    with pytest.raises(typer.BadParameter, match=r"No file trec/dve\.txt"):
        make_docs.read_split(data, source, "dev", spacy.blank("en").vocab)


def test_a_task_of_ones_own_cannot_have_the_name_of_a_public_one(compare: ModuleType) -> None:
    with pytest.raises(typer.BadParameter, match="another name than the public task 'trec' has"):
        compare.choose_tasks(None, ["trec:textcat:a.spacy:b.spacy:c.spacy"])


@pytest.mark.parametrize("program", ["make_docs", "compare"])
@pytest.mark.parametrize("setting", ["mine:entities:train", "mine:verses:a:b:c"])
def test_task_of_another_form_is_an_error_that_shows_it(
    program: str, setting: str, load: Callable[[str], ModuleType]
) -> None:
    module = load(program)
    choose = module.choose_sources if program == "make_docs" else module.choose_tasks
    with pytest.raises(typer.BadParameter, match=r"Expected NAME:.*:TRAIN:DEV:TEST.*got mine:"):
        choose(None, [setting])


def test_tasks_of_ones_own_are_compared_alone_unless_others_are_named(
    compare: ModuleType,
) -> None:
    setting = "mine:ner:a.spacy:b.spacy:c.spacy"
    assert list(compare.choose_tasks(None, [setting])) == ["mine"]
    assert list(compare.choose_tasks("trec", [setting])) == ["trec", "mine"]
    assert compare.choose_tasks(None, [setting])["mine"].test == "c.spacy"


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations_with_and_without_elmo_are_otherwise_equal(name: str) -> None:
    without, with_elmo = (
        Config().from_disk(FOLDER / "configs" / f"{name}{end}.cfg", interpolate=False)
        for end in ("", "_elmo")
    )
    assert with_elmo["components"].pop("elmo")["factory"] == "elmo"
    assert with_elmo["nlp"]["pipeline"].pop(0) == "elmo"
    assert with_elmo["training"].pop("logger")["@loggers"] == "spacy_elmo.MixLogger.v1"
    for component, section in with_elmo["components"].items():
        tok2vec = section["model"]["tok2vec"]
        if isinstance(tok2vec, dict):  # not a reference to another section
            assert tok2vec.pop("@architectures") == "spacy_elmo.ElmoTok2Vec.v1"
            assert tok2vec.pop("elmo")["@architectures"] == "spacy_elmo.ElmoListener.v1"
            tok2vec.pop("elmo_output", None)
            plain = without["components"][component]["model"]["tok2vec"].pop("@architectures")
            assert plain == "spacy.Tok2Vec.v2"
    assert with_elmo == without


def test_a_point_of_the_curve_is_the_mean_of_its_seeds_and_their_deviation(
    tables: ModuleType, tmp_path: Path
) -> None:
    results = {
        # Each doc of TREC has one category: (right, found, to be found).
        tables.Run("trec", variant, seed, share): {
            "counts": {"accuracy": [(1, 1, 1), (seed if variant == "with" else 0, 1, 1)]}
        }
        for variant in tables.VARIANTS
        for seed in (0, 1)
        for share in tables.SHARES
    }
    assert tables.compute_curve(results, "without")[0] == (1, 50, 0)
    assert tables.compute_curve(results, "with")[0] == pytest.approx((1, 75, 50 / 2**0.5))
    tables.plot_curve(results, tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").is_file()


def test_facts_of_a_doc_are_counted_where_its_gold_doc_is_annotated(compare: ModuleType) -> None:
    vocab = spacy.blank("en").vocab
    words, tags = ["Ada", "slept", "."], ["X", "Y", "."]
    gold = Doc(vocab, words, tags=tags, heads=[1, 1, 1], deps=["nsubj", "ROOT", "punct"])
    found = Doc(vocab, words, tags=["X", "Z", "."], heads=[1, 1, 1], deps=["obj", "ROOT", "punct"])
    counts = {
        metric: compare.count(find, found, gold)
        for metric, find in compare.METRICS["english"].items()
    }
    assert counts == {
        "tag accuracy": (2, 3, 3),
        "morphology accuracy": (0, 0, 0),
        "lemma accuracy": (0, 0, 0),
        "UAS": (2, 2, 2),
        "LAS": (1, 2, 2),
        "F1 of sentences": (1, 1, 1),
        "entity F1": (0, 0, 0),
    }


@pytest.mark.filterwarnings("ignore:.*W090")
@pytest.mark.parametrize("count", [0, 1])
def test_a_test_set_with_too_few_docs_for_intervals_is_refused_before_training(
    count: int, compare: ModuleType, tmp_path: Path
) -> None:
    words = Doc(spacy.blank("en").vocab, words=["cat"])
    DocBin(docs=[words] * count).to_disk(tmp_path / "test.spacy")
    with pytest.raises(ValueError, match=f"Expected two or more docs in .*, got {count}\\."):
        compare.main(tmp_path, tmp_path, task=["mine:ner:train:dev:test.spacy"])


def test_vectors_of_another_kind_are_refused_before_training(
    compare: ModuleType, tmp_path: Path
) -> None:
    spacy.blank("en").to_disk(tmp_path / "empty")
    (tmp_path / "vectors.txt").write_text("cat 0 1\n")
    for name in ("empty", "vectors.txt", "missing"):
        with pytest.raises(typer.BadParameter, match="Expected a folder of `spacy init vectors`"):
            compare.main(tmp_path, tmp_path, tasks="trec", vectors=tmp_path / name)


@pytest.mark.parametrize("changed", [None, "settings", "config", "contents"])
def test_a_run_is_made_again_if_what_it_was_made_of_has_changed(
    changed: str | None, compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = compare.TASKS["trec"]
    paths = [tmp_path / name for name in task[2:]]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text(path.name)
    one = compare.Run("trec", "without", 0)
    known = {
        "settings": ["--x"],
        "config": (FOLDER / "configs" / "textcat.cfg").read_text(encoding="utf-8"),
        "contents": compare.list_contents(paths),
    }
    result = tmp_path / "results" / f"{one.name}.json"
    result.parent.mkdir()
    result.write_text(json.dumps(known | ({changed: "other"} if changed else {})))
    started = []

    def start(command: list[str], **_: Any) -> None:
        started.append(command)
        raise KeyboardInterrupt

    monkeypatch.setattr(compare.subprocess, "Popen", start)
    with contextlib.suppress(KeyboardInterrupt):
        compare.train(one, task, tmp_path, tmp_path, ["--x"])
    assert bool(started) == bool(changed)


def test_the_costs_of_a_run_are_its_own(compare: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    costs = compare.run_and_measure([sys.executable, "-c", "print(sum(range(10**6)))"], log)
    assert costs["peak_kib"] < 0.5 * kib  # this process has loaded PyTorch
    assert 0 < costs["cpu_seconds"] < 30
    assert log.read_text() == f"{sum(range(10**6))}\n"
    with pytest.raises(RuntimeError, match=r"failed: see .*log\.txt"):
        compare.run_and_measure([sys.executable, "-c", "raise ValueError"], log)
    assert "ValueError" in log.read_text()


def test_the_content_of_files_and_of_folders_is_described(
    compare: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/1", "a/2", "b"):
        (tmp_path / name).write_text(name)
    found = compare.list_contents([tmp_path / "a", tmp_path / "b"])
    assert len(set(found)) == 3
    (tmp_path / "a" / "2").write_text("x/y")
    assert [x == y for x, y in zip(found, compare.list_contents([tmp_path]), strict=True)] == [
        *(True, False, True)
    ]


@pytest.mark.parametrize(
    ("variants", "row"),
    [
        (("without", "with"), "| 1 | 5.0 | 25.0 | +20.0 (+5.0 to +40.0) | -21 % | "),
        (("without", "static", "with"), "| 1 | 5.0 | 95.0 | 25.0 | -70.0 (-90.0 to -50.0) | "),
        (
            ("without", "static", "with", "both"),
            "| 1 | 5.0 | 95.0 | 25.0 | 40.0 | -55.0 (-75.0 to -35.0) | ",
        ),
    ],
)
def test_elmo_is_compared_with_the_same_input_without_it(
    variants: tuple[str, ...], row: str, tables: ModuleType
) -> None:
    right = {"without": 1, "static": 19, "with": 5, "both": 8}  # of 20 docs
    results = {tables.Run("trec", name, 0): count_right(right[name]) for name in variants}
    (line,) = list(tables.draw_table(results, {"trec": tables.TASKS["trec"]}))[2:]
    assert line.startswith(f"| TREC, 6 classes | accuracy {row}")
    if "static" in variants:  # a difference below 0 is as significant as one above it
        assert line.endswith("| 0.0002 |")


def count_right(number: int) -> dict[str, Any]:
    """Make the result of a run that labels the first docs of 20 correctly."""
    counts = [(int(doc < number), 1, 1) for doc in range(20)]
    mix = {"component": "textcat", "position": "input", "shares": [0.2, 0.8], "gamma": 1.0}
    return {"counts": {"accuracy": counts}, "mixes": [mix], "cpu_seconds": 1, "peak_kib": 2048}


def test_the_interval_covers_the_variation_between_seeds(tables: ModuleType) -> None:
    results = {
        tables.Run("trec", variant, seed): count_right(right)
        for variant, numbers in {"without": (0, 0, 0), "with": (0, 20, 20)}.items()
        for seed, right in enumerate(numbers)
    }
    got = tables.compare(results, "trec", "accuracy")
    # All three draws are the first seed in 1 of 27 resamples, and all docs of a seed are alike.
    assert (got.low, got.high) == (0, 100)
    assert got.p == pytest.approx(2 / 27, abs=0.01)


def test_drawn_seeds_are_paired_and_averaged(tables: ModuleType) -> None:
    results = {
        tables.Run("trec", variant, seed): count_right(10 * seed + (variant == "with"))
        for variant in ("without", "with")
        for seed in (0, 1)
    }
    got = tables.compare(results, "trec", "accuracy")
    assert got.scores == {"without": [0, 50], "with": pytest.approx([5, 55])}
    # One doc differs in each seed: seeds that are not paired would differ by up to ten docs.
    assert (got.low, got.high) == pytest.approx((0, 15), abs=2.6)


def test_a_table_shows_the_seeds_that_are_finished_and_names_another_comparison(
    tables: ModuleType, tmp_path: Path
) -> None:
    finished = {
        ("trec", "static"): 3,
        ("trec", "with"): 2,
        ("sst5", "static"): 1,
        ("sst5", "both"): 1,
        ("wnut17", "with"): 1,
    }
    results = {
        tables.Run(*name, seed): count_right(10)
        for name, number in finished.items()
        for seed in range(number)
    }
    tables.draw(results, tables.TASKS, tmp_path)
    rows = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()[2:4]
    assert rows[0].startswith(
        "| SST-5 | accuracy | 1 | 50.0 | not run yet | 50.0 | +0.0 (+0.0 to +0.0)"
    )
    assert rows[1].startswith(
        "| TREC, 6 classes | accuracy | 2 | 50.0 ± 0.0 | 50.0 ± 0.0 | not run yet "
        "| ELMo minus static vectors: +0.0"
    )
    assert "WNUT" not in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_a_task_whose_variants_share_no_seed_is_not_in_the_table(
    tables: ModuleType, tmp_path: Path
) -> None:
    finished = [("trec", "without", 0), ("trec", "with", 1), ("sst5", "without", 1)]
    results = {tables.Run(*one): count_right(10) for one in finished}
    assert "No task" in tables.draw(results, tables.TASKS, tmp_path)
    results[tables.Run("sst5", "with", 1)] = count_right(10)
    assert "TREC" not in tables.draw(results, tables.TASKS, tmp_path)


def test_without_elmo_alone_no_mixes_are_plotted(tables: ModuleType, tmp_path: Path) -> None:
    results = {tables.Run("trec", variant, 0): count_right(10) for variant in ("static", "both")}
    assert "TREC" in tables.draw(results, tables.TASKS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["table.md"]


def test_results_that_are_there_are_drawn_without_data(
    compare: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").mkdir()
    for variant in ("without", "with"):
        path = tmp_path / "results" / f"{compare.Run('trec', variant, 0).name}.json"
        path.write_text(json.dumps(count_right(5)))
    compare.main(tmp_path / "missing", tmp_path, draw_only=True)
    assert "| TREC, 6 classes | accuracy | 1 | 25.0 | 25.0 |" in capsys.readouterr().out
    compare.main(tmp_path / "missing", tmp_path, tasks="ewt", draw_only=True)
    assert "No task has finished runs" in capsys.readouterr().out


def test_the_page_shows_the_table_of_the_stored_results(
    compare: ModuleType, tables: ModuleType
) -> None:
    pipeline = tables.Task("English pipeline", "english", "", "", "")
    all_tasks = tables.TASKS | {"pipeline": pipeline}
    runs = compare.list_runs(all_tasks, 3, has_curve=False, has_vectors=True)
    results = tables.read_results(FOLDER / "results", runs)
    tasks = {name: task for name, task in all_tasks.items() if tables.can_compare(results, name)}
    page = (FOLDER.parent / "README.md").read_text(encoding="utf-8").splitlines()
    assert "pipeline" in tasks
    assert [row for row in tables.draw_table(results, tasks) if row not in page] == []


@pytest.mark.slow
def test_one_command_makes_docs_and_another_trains_twins_and_compares_them(
    data: Path, tmp_path: Path
) -> None:
    tasks = "ewt,wnut17,trec,litbank"
    corpus, output = tmp_path / "corpus", tmp_path / "output"
    run("make_docs.py", data, corpus, "--tasks", tasks)
    docs = list(
        DocBin().from_disk(corpus / "trec" / "test.spacy").get_docs(spacy.blank("en").vocab)
    )
    assert docs[1].cats["HUM"] == 1
    (tmp_path / "vectors.txt").write_text("2 3\nthe 1 0 0\ncat 0 1 1\n")
    vectors = tmp_path / "vectors"
    run("-m", "spacy", "init", "vectors", "en", tmp_path / "vectors.txt", vectors)
    run(
        *("compare.py", corpus, output, "--tasks", tasks, "--seeds", "1", "--no-curve"),
        *("--vectors", vectors),
        *("--task", "mine:ner:" + ":".join(f"wnut17/{s}.spacy" for s in ("train", "dev", "test"))),
        *("--settings", "--training.max_steps 2 --training.eval_frequency 2"),
    )
    rows = (output / "table.md").read_text().splitlines()
    assert "| ELMo | static vectors and ELMo | static vectors and ELMo minus static" in rows[0]
    for name, pair in product(("ewt", "trec"), (("without", "static"), ("with", "both"))):
        plain, static = (
            spacy.load(output / "runs" / f"{name}-{variant}-0-1" / "model-best") for variant in pair
        )
        assert static.vocab.vectors.shape == (2, 3)
        sizes = [
            sum(node.has_param("W") and node.get_param("W").size for node in pipe.model.walk())
            for _, pipe in (*plain.pipeline[-1:], *static.pipeline[-1:])
        ]
        assert sizes[0] < sizes[1]  # a layer reads the vectors
    assert [row.split(" | ")[1] for row in rows[2:9]] == [
        *("tag accuracy", "lemma accuracy", "LAS", "entity F1", "accuracy", "span F1", "entity F1")
    ]
    assert "prefers-color-scheme: dark" in (output / "mix.svg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_one_command_makes_a_wheel_of_an_english_pipeline(
    compare: ModuleType, data: Path, tmp_path: Path
) -> None:
    project = shutil.copytree(FOLDER, tmp_path / "project")
    settings = ["--vars.data", str(data), "--vars.english_steps", "2"]
    run("-m", "weasel", "run", "english", ".", *settings, cwd=project)
    (wheel,) = project.glob("packages/*/dist/en_elmo_mini-0.1.0-*.whl")
    site = tmp_path / "site"
    run("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    code = f"""
import sys
sys.path.insert(0, {str(site)!r})
import spacy
nlp = spacy.load("en_elmo_mini")
assert nlp.pipe_names == ["elmo", "tagger", "morphologizer", "parser", "lemmatizer", "ner"]
assert nlp("Do n't look .").has_annotation("DEP")
assert [source["license"] for source in nlp.meta["sources"]][0] == "CC BY-SA 4.0"
assert "spacy-elmo" in " ".join(nlp.meta["requirements"])
"""
    run("-c", code, cwd=tmp_path)
    parts = ":".join(f"english/{split}" for split in ("train", "dev", "test"))
    run(
        *("compare.py", project / "corpus", tmp_path, "--task", f"pipeline:english:{parts}"),
        *("--seeds", "1", "--settings", "--training.max_steps 2 --training.eval_frequency 2"),
    )
    rows = (tmp_path / "table.md").read_text().splitlines()[2:9]
    assert [row.split(" | ")[1] for row in rows] == list(compare.METRICS["english"])


def run(*arguments: str | Path, cwd: Path = FOLDER) -> None:
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert result.returncode == 0, result.stdout + result.stderr

"""The demo's JavaScript in Node.js and in Chromium, against Python."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from build_demo import WEB, install_runtime, write_demo
from collection import read_collection
from printed import find_blocks
from spacy_data import read_tokenizer_rules

from hf_elmo import ElmoModel
from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.inference.embedding import embed
from hf_elmo.language_model.models import load_language_model
from hf_elmo.language_model.scores import find_substitutes
from hf_elmo.onnx import export_onnx

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js"),
]
DOCS = Path(__file__).resolve().parents[3] / "docs"
TOLERANCE = 1e-5  # of float32: 3.8e-6 was measured
TEXTS = [
    "I don't know, can't've known; they're here.",
    'He said: "Wait (a bit)!" — then left…',
    "The U.S. paid $5.00/kg at 3:30pm to Dr. Smith, Ph.D., e.g. in N.Y.",
    "Visit https://example.com/a?b=c, or mail me@example.org! :-) good:)",
    "The well-known 10km run/walk cost 5€, i.e. 'cheap'.",
    "Nice 😀👍🏽 naïve l'été 中文。",
    "((nested)) [[brackets]]... and/or x=y a_b #tag @user",
    "",
    "  spaces \t and\nlines ",
    "\ufeffThe bank\x85river a\x1cb c\u2003d e\u00a0f",
]
WORDS = [
    "bank",
    "été",
    "😀",
    "中文",
    "a" * 47,
    "a" * 48,
    "é" * 40,
    "<S>",
    "</S>",
    "a\ud800b",
    "__proto__",
]


def run_node(code: str, given: Any) -> Any:
    """Run a module; `given` is what it reads, and its last line of output is returned."""
    read = 'import {readFileSync} from "node:fs"; const given = JSON.parse(readFileSync(0));\n'
    command = ["node", "--input-type=module", "-e", read + code]
    text = json.dumps(given)
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return install_runtime(tmp_path_factory.mktemp("runtime"))
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def demo(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    write_demo(folder, BUNDLED_NAME, runtime=runtime)
    return folder


def split(texts: list[str]) -> list[list[str]]:
    code = f"""import {{ makeTokenizer }} from "{WEB.as_uri()}/tokenizer.js";
    console.log(JSON.stringify(given.texts.map(makeTokenizer(given.rules))));"""
    return run_node(code, {"texts": texts, "rules": read_tokenizer_rules()})


def split_by_spacy(texts: list[str]) -> list[list[str]]:
    nlp = spacy.blank("en")
    return [[token.text for token in doc if not token.is_space] for doc in nlp.pipe(texts)]


def test_text_is_split_as_spacy_splits_it() -> None:
    assert split(TEXTS) == split_by_spacy(TEXTS)


def test_real_text_is_split_as_spacy_splits_it(shared: Path) -> None:
    texts = []
    for part in ("train", "dev", "test"):
        with gzip.open(shared / "data" / "ewt" / f"en_ewt-ud-{part}.conllu.gz", "rt") as lines:
            texts += [line[9:-1] for line in lines if line.startswith("# text = ")]
    equal = [a == b for a, b in zip(split(texts), split_by_spacy(texts), strict=True)]
    assert equal.count(False) <= 3  # of 16,622


def test_words_are_spelled_as_the_tokenizer_spells_them(demo: Path) -> None:
    code = f"""import {{ spell }} from "{demo.as_uri()}/elmo.js";
    console.log(JSON.stringify(Array.from(spell(given.words, given.spelling), Number)));"""
    spelling = json.loads((demo / "data.json").read_text())["spelling"]
    *_, tokenizer = load_language_model(resolve_name(BUNDLED_NAME))[:2]
    expected = tokenizer([WORDS], is_split_into_words=True)["input_ids"][0]
    found = run_node(code, {"words": WORDS, "spelling": spelling})
    assert found == np.concatenate(expected).tolist()


@pytest.fixture(scope="module")
def computed(demo: Path) -> list[dict[str, Any]]:
    """Compute the layers of sentences, and guesses of a word in each, as the page does."""
    code = f"""import {{ loadElmo }} from "{demo.as_uri()}/elmo.js";
    import {{ guess, readSoftmax }} from "{demo.as_uri()}/vectors.js";
    const read = (name) => readFileSync("{demo}/" + name);
    const data = JSON.parse(read("data.json"));
    const run = await loadElmo(read("model.onnx"), data.spelling);
    const bytes = new Uint8Array(read("softmax.bin")).buffer;
    const softmax = readSoftmax(bytes, data.guesses.words.length);
    const found = [];
    for (const [i, words] of given.entries()) {{
      const layers = await run(words);
      const numbers = guess(layers.at(-1), i % words.length, data.guesses.boundaries, softmax, 8);
      const guesses = Object.entries(numbers).map(([direction, rows]) =>
        [direction, rows.map((row) => data.guesses.words[row])]);
      found.push({{ layers: layers.map((layer) => layer.map((v) => Array.from(v))),
        guesses: Object.fromEntries(guesses) }});
    }}
    console.log(JSON.stringify(found));"""
    return run_node(code, [words for _, words in read_collection()])


def test_vectors_are_those_of_pytorch(computed: list[dict[str, Any]]) -> None:
    model, tokenizer, _ = load_language_model(resolve_name(BUNDLED_NAME))
    for (_, words), found in zip(read_collection(), computed, strict=True):
        (expected,) = embed([words], model, tokenizer, layers="all", backend="torch")
        np.testing.assert_allclose(found["layers"], expected, atol=TOLERANCE, rtol=0)


def test_guesses_are_those_of_the_softmax(computed: list[dict[str, Any]]) -> None:
    """Weights in 8 bits exchange some guesses that are nearly as likely as others."""
    loaded = load_language_model(resolve_name(BUNDLED_NAME))
    same = []
    for i, ((_, words), found) in enumerate(zip(read_collection(), computed, strict=True)):
        for direction, guesses in found["guesses"].items():
            expected = find_substitutes(
                words, i % len(words), *loaded, count=len(guesses), direction=direction
            )
            same += [substitute.word in guesses for substitute in expected]
    assert np.mean(same) >= 0.99  # .993 was measured


def test_javascript_of_the_docs_prints_what_its_comments_say(runtime: Path, tmp_path: Path) -> None:
    (code,) = find_blocks((DOCS / "demo.md").read_text(encoding="utf-8"), "js")
    model = ElmoModel.from_pretrained(resolve_name(BUNDLED_NAME)).eval()
    (tmp_path / "exported").mkdir()
    export_onnx(model, tmp_path / "exported" / "model.onnx")
    (tmp_path / "node_modules").symlink_to(runtime.parent)
    (tmp_path / "embed.mjs").write_text(code, encoding="utf-8")
    result = subprocess.run(
        ["node", "embed.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == re.findall(r"console\.log\(.*\); // (.*)", code)


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(
        [*command, "--directory", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            yield re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())[0]
        finally:
            server.terminate()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (None, ['<div id="results">', "walked along the <mark>bank</mark> of the river"]),
        ("model.onnx", ['<div id="results" hidden="">', "Expected model.onnx", "got 404"]),
    ],
)
def test_the_page_shows_neighbors_or_what_is_wrong(
    demo: Path, tmp_path: Path, missing: str | None, expected: list[str]
) -> None:
    folder = shutil.copytree(demo, tmp_path / "demo")
    if missing:
        (folder / missing).unlink()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=60000"]
    with serve(folder) as address:
        result = subprocess.run(
            ["chromium", *options, "--dump-dom", address],
            capture_output=True,
            text=True,
            check=True,
            timeout=900,
        )
    assert [text for text in expected if text not in result.stdout] == []

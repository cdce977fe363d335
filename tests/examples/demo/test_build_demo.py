"""The folder of the demo's page."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import build_demo as build
import numpy as np
import onnxruntime
import pytest
import torch
from build_demo import LOCK_NAME, WEB, write_demo

from hf_elmo import ElmoForPreTraining, ElmoModel, ElmoTokenizer
from hf_elmo.language_model.vocabulary import TargetVocabulary


def read_data(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "data.json").read_text(encoding="utf-8"))


@pytest.fixture
def demo(tiny_folder: Path, runtime: Path, tmp_path: Path) -> Path:
    write_demo(tmp_path / "demo", str(tiny_folder), runtime=runtime)
    return tmp_path / "demo"


def test_the_folder_has_every_file_that_the_page_names(demo: Path) -> None:
    sources = [path.read_text() for path in demo.iterdir() if path.suffix in (".html", ".js")]
    named = {name for text in sources for name in re.findall(r'"(?:\./)?([\w-]+\.\w+)"', text)}
    assert named >= {"page.js", "style.css", "model.onnx", "data.json", "onnxruntime.js"}
    missing = {name for name in named if not (demo / name).is_file()}
    assert missing == {"softmax.bin"}  # this model has none


def test_vectors_of_the_collection_are_floats_in_the_order_of_the_places(demo: Path) -> None:
    data = read_data(demo)
    numbers = np.fromfile(demo / "collection.bin", dtype="<f4")
    assert numbers.size == data["numLayers"] * len(data["places"]) * data["width"]


def test_the_exported_model_takes_the_spelling_of_the_page(demo: Path) -> None:
    data = read_data(demo)["spelling"]
    session = onnxruntime.InferenceSession(demo / "model.onnx")
    shapes = {node.name: node.shape for node in session.get_inputs()}
    assert shapes["input_ids"][2] == data["numCells"]
    assert shapes.keys() == {"input_ids", "attention_mask"}
    (row,) = ElmoTokenizer()([["a"]], is_split_into_words=True)["input_ids"][0]
    marks = [data["wordStart"], ord("a") + 1, data["wordEnd"]]
    assert list(row) == marks + [data["padding"]] * (data["numCells"] - 3)


def test_the_page_takes_code_from_its_folder_only(demo: Path) -> None:
    text = (demo / "index.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', text)[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert rules["connect-src"] == "'self'"
    assert re.findall(r"<script(?![^>]* src=)|\son\w+=|\sstyle=", text) == []


def test_the_softmax_is_written_in_8_bits(tiny_folder: Path, runtime: Path, tmp_path: Path) -> None:
    config = ElmoModel.from_pretrained(tiny_folder).config
    config.vocab_size = 5
    torch.manual_seed(0)
    model = ElmoForPreTraining(config).eval()
    model.save_pretrained(tiny_folder)
    TargetVocabulary(["<S>", "</S>", "<UNK>", "river", "bank"]).save(tiny_folder)
    write_demo(tmp_path / "demo", str(tiny_folder), runtime=runtime)
    content = (tmp_path / "demo" / "softmax.bin").read_bytes()
    scales, biases = np.frombuffer(content, "<f4", count=10).reshape(2, 5)
    weights = np.frombuffer(content, np.int8, offset=40).reshape(5, -1) * scales[:, None]
    assert np.isneginf(biases).tolist() == [True, True, True, False, False]
    expected = model.softmax.weight.detach().numpy()
    np.testing.assert_allclose(weights, expected, atol=float(scales.max()) / 2 + 1e-6)
    assert read_data(tmp_path / "demo")["guesses"]["words"][3] == "river"


def test_a_folder_with_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(FileExistsError, match=r"Expected a new or empty folder.*Choose another"):
        write_demo(tmp_path, "elmo-mini-en")


def test_the_current_folder_can_hold_a_demo(
    tiny_folder: Path, runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    write_demo(Path(), str(tiny_folder), runtime=runtime)
    assert (tmp_path / "empty" / "data.json").is_file()
    assert Path.cwd() == tmp_path / "empty"
    with pytest.raises(FileNotFoundError, match=r"Expected a folder .*missing, found none"):
        write_demo(Path("missing", "demo"), str(tiny_folder), runtime=runtime)


def test_nothing_is_left_of_a_demo_that_fails(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "demo"
    folder.mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"onnxruntime-web in .*, found no dist"):
        write_demo(folder, str(tiny_folder), runtime=tmp_path)
    assert list(folder.parent.rglob("*")) == [folder]


def test_without_npm_the_error_says_what_to_do(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"Install Node\.js\..*--onnxruntime-web"):
        write_demo(tmp_path / "demo", str(tiny_folder))


def test_an_error_of_npm_is_shown(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(npm))
    with pytest.raises(OSError, match=r"got: no network\nGive a copy"):
        write_demo(tmp_path / "demo", str(tiny_folder))


def test_a_model_that_does_not_read_bytes_is_refused(
    tiny_folder: Path, runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = ElmoModel.from_pretrained(tiny_folder).eval()
    tokenizer = ElmoTokenizer(characters="none", word_vocab=["<UNK>", "a"])
    monkeypatch.setattr(build, "_load", lambda name: (loaded, tokenizer, None))
    with pytest.raises(ValueError, match="Expected a biLM that reads bytes"):
        write_demo(tmp_path / "demo", "name", runtime=runtime)


def test_the_lock_file_names_public_addresses_only() -> None:
    packages = json.loads((WEB / LOCK_NAME).read_text())["packages"]
    addresses = [package.get("resolved", "") for package in packages.values()]
    assert {a.split("/")[2] for a in addresses if a} <= {"registry.npmjs.org"}
    assert all("integrity" in package for name, package in packages.items() if name)

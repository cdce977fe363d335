"""The callable of every engine: what goes in comes out with its vectors."""

import copy
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.corpus import SentenceEmbedder, sentence_embedder
from hf_elmo.inference.embedding import embed
from hf_elmo.loading import find_device

GROWTH = """
import sys
import psutil
from hf_elmo.corpus import SentenceEmbedder

embedder = SentenceEmbedder(sys.argv[1], pooling="mean")
for number in range(100):  # 10,000 words each, none of which was met before
    first = 10_000 * number
    words = [str(number) for number in range(first, first + 10_000)]
    embedder({"text": [words[start : start + 20] for start in range(0, len(words), 20)]})
    if number == 19:
        before = psutil.Process().memory_info().rss
print((psutil.Process().memory_info().rss - before) / 1e6)
"""
SENTENCES = [["The", "bank", "raised", "its", "rates", "."], [], ["A", "river", "bank"]]


def compute(model: ElmoModel, **options: Any) -> list[np.ndarray]:
    model = copy.deepcopy(model).to(find_device(None))  # where the embedder computes
    return list(embed(SENTENCES, model, ElmoTokenizer(), **options))


@pytest.mark.parametrize("layers", ["mix", "all", "top", 0])
@pytest.mark.parametrize("output_dtype", ["float32", "float16"])
def test_a_dictionary_gets_a_list_of_arrays(
    tiny_model: ElmoModel, tiny_folder: Path, layers: Any, output_dtype: Any
) -> None:
    embedder = SentenceEmbedder(str(tiny_folder), layers=layers, output_dtype=output_dtype)
    batch = {"id": [1, 2, 3], "text": np.array([" ".join(words) for words in SENTENCES])}
    result = embedder(batch)
    assert result["id"] == [1, 2, 3]
    expected = compute(tiny_model, layers=layers, dtype=output_dtype)
    for vectors, right in zip(result["vectors"], expected, strict=True):
        assert vectors.dtype == output_dtype
        np.testing.assert_array_equal(vectors, right)
    assert "vectors" not in batch


def test_datasets_get_a_column(tiny_model: ElmoModel, tiny_folder: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": [" ".join(words) for words in SENTENCES]})
    result = rows.map(SentenceEmbedder(str(tiny_folder), pooling="mean"), batched=True)
    np.testing.assert_array_equal(result["vectors"], np.stack(compute(tiny_model, pooling="mean")))


def test_a_model_that_does_not_exist_is_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"Could not load 'my-emlo', .* there is no such folder"):
        SentenceEmbedder("my-emlo").load()


def test_pooled_vectors_are_one_array(tiny_model: ElmoModel, tiny_folder: Path) -> None:
    embedder = SentenceEmbedder(str(tiny_folder), pooling="mean", text_column="words")
    vectors = embedder({"words": SENTENCES})["vectors"]
    np.testing.assert_array_equal(vectors, np.stack(compute(tiny_model, pooling="mean")))


@pytest.mark.parametrize("make", [pa.table, pa.RecordBatch.from_pydict])
def test_arrow_gets_lists_with_their_layout(
    tiny_model: ElmoModel, tiny_folder: Path, make: Any
) -> None:
    embedder = SentenceEmbedder(str(tiny_folder), layers="all", vectors_column="elmo")
    batch = embedder(make({"text": SENTENCES}))
    assert batch.schema.metadata == {b"hf_elmo": b'{"layers": 3, "width": 16}'}
    expected = compute(tiny_model, layers="all")
    for numbers, right in zip(batch.column("elmo").to_pylist(), expected, strict=True):
        np.testing.assert_array_equal(np.reshape(numbers, (3, -1, 16)), right)


@pytest.mark.parametrize("batch", [{"text": []}, pa.table({"text": pa.array([], pa.string())})])
def test_an_empty_batch_stays_empty(tiny_folder: Path, batch: Any) -> None:
    assert len(SentenceEmbedder(str(tiny_folder))(batch)["vectors"]) == 0


def test_a_model_is_loaded_once_a_process_and_when_it_is_needed(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    load = sentence_embedder.load_model
    monkeypatch.setattr(
        sentence_embedder, "load_model", lambda *a, **k: loaded.append(a) or load(*a, **k)
    )
    sentence_embedder._load_once.cache_clear()
    embedder = SentenceEmbedder(str(tiny_folder))
    copies = [pickle.loads(pickle.dumps(embedder)) for _ in range(2)]
    assert loaded == []
    for one in (embedder, *copies):
        one({"text": ["A bank"]})
    assert len(loaded) == 1
    assert len(pickle.dumps(embedder)) < 1000  # the model does not travel


def test_datasets_computes_again_when_the_model_has_changed(
    tiny_model: ElmoModel, tiny_folder: Path
) -> None:
    hasher = pytest.importorskip("datasets.fingerprint").Hasher
    embedder = SentenceEmbedder(str(tiny_folder))
    before = hasher.hash(embedder)
    assert hasher.hash(SentenceEmbedder(str(tiny_folder))) == before
    tiny_model.save_pretrained(tiny_folder)
    assert hasher.hash(embedder) != before


def test_a_model_that_is_saved_again_is_loaded_again(
    tiny_folder: Path, tiny_model: ElmoModel, tmp_path: Path
) -> None:
    shutil.copytree(tiny_folder, tmp_path / "model")
    embedder = SentenceEmbedder(str(tmp_path / "model"), layers="all")
    batch = {"text": [" ".join(words) for words in SENTENCES]}
    before = embedder(batch)["vectors"]
    changed = copy.deepcopy(tiny_model)
    with torch.no_grad():
        for weight in changed.parameters():
            weight.mul_(0.5)
    changed.save_pretrained(tmp_path / "model")
    after = embedder(batch)["vectors"]
    assert not np.allclose(before[0], after[0])
    for got, right in zip(after, compute(changed, layers="all"), strict=True):
        np.testing.assert_array_equal(got, right)


def test_a_link_to_another_model_with_the_same_times_and_sizes_is_noticed(
    tiny_folder: Path, tiny_model: ElmoModel, tmp_path: Path
) -> None:
    changed = copy.deepcopy(tiny_model)
    with torch.no_grad():
        for weight in changed.parameters():
            weight.mul_(0.5)
    for name, model in (("first", tiny_model), ("second", changed)):
        shutil.copytree(tiny_folder, tmp_path / name)
        model.save_pretrained(tmp_path / name)
        for path in (tmp_path / name).iterdir():
            os.utime(path, ns=(0, 0))
    link = tmp_path / "model"
    link.symlink_to("first")
    embedder = SentenceEmbedder(str(link), layers="all")
    batch = {"text": [" ".join(words) for words in SENTENCES]}
    before = embedder(batch)["vectors"]
    link.unlink()
    link.symlink_to("second")
    assert not np.allclose(before[0], embedder(batch)["vectors"][0])


def test_threads_are_set_when_the_model_is_loaded(tiny_folder: Path) -> None:
    before = torch.get_num_threads()
    try:
        SentenceEmbedder(str(tiny_folder), threads=before + 1)({"text": ["A bank"]})
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (["A bank"], TypeError, "Expected a dictionary of columns, or .* pyarrow, got list"),
        ({"id": [1]}, ValueError, "Expected a column 'text' of sentences, got id"),
        (pa.table({"id": [1]}), ValueError, "Expected a column 'text' of sentences, got id"),
        ({"text": [], "vectors": []}, ValueError, "Expected no column 'vectors' in the batch"),
        (pa.table({"text": [""], "vectors": [1]}), ValueError, "Expected no column 'vectors'"),
    ],
)
def test_a_batch_without_text_or_with_vectors_is_refused(
    batch: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        SentenceEmbedder()(batch)


def test_one_row_is_no_batch(tiny_folder: Path) -> None:
    with pytest.raises(TypeError, match=r"got a string.*batched=True"):
        SentenceEmbedder(str(tiny_folder))({"text": "The bank raised"})


def test_an_unknown_backend_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(ValueError, match="Expected backend auto, torch or onnx, got 'pytorch'"):
        SentenceEmbedder(str(tiny_folder), backend="pytorch").load()  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_worker_does_not_grow_over_a_million_new_words(tiny_folder: Path) -> None:
    command = [sys.executable, "-c", GROWTH, str(tiny_folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 30  # megabytes over the last 800,000 words


def test_int8_with_half_precision_is_refused(tiny_folder: Path) -> None:
    embedder = SentenceEmbedder(str(tiny_folder), quantization="int8", dtype="bfloat16")
    with pytest.raises(ValueError, match=r"Expected dtype float32 .* got dtype bfloat16"):
        embedder({"text": ["a b"]})

"""Any number and kind of workers, killed or not, give the same vectors of a corpus."""

import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.corpus import local_workers
from hf_elmo.corpus.local_workers import embed_in_processes, make_pieces
from hf_elmo.corpus.rows import Row
from hf_elmo.corpus.sentence_embedder import SentenceEmbedder
from hf_elmo.inference.embedding import embed

ROOT = Path(__file__).parents[3]
TOLERANCE = 1e-5  # float32, whatever a sentence is batched with
COMMAND = [sys.executable, "-m", "hf_elmo", "embed"]


SENTENCES = [
    [f"word{number * place % 97}" for place in range(number % 11)] for number in range(300)
]
IDS = [f"row {number}" for number in range(len(SENTENCES))]
Vectors = dict[str, np.ndarray]


@pytest.fixture
def corpus(tiny_folder: Path) -> Path:
    """Write a corpus of two files beside the model."""
    folder = tiny_folder.parent / "corpus"
    folder.mkdir()
    for name, part in (("a", slice(0, 200)), ("b", slice(200, None))):
        table = pa.table({"name": IDS[part], "text": SENTENCES[part]})
        parquet.write_table(table, folder / f"{name}.parquet")
    return folder


@pytest.fixture
def expected(tiny_model: ElmoModel) -> Vectors:
    vectors = embed(SENTENCES, tiny_model, ElmoTokenizer(), layers="mix", pooling="mean")
    return dict(zip(IDS, vectors, strict=True))


def make_arguments(corpus: Path, *arguments: str) -> list[str]:
    return [
        *(f"{corpus}/*.parquet", str(corpus.parent / "vectors.parquet"), "--layers", "mix"),
        *("--pooling", "mean", "--id-column", "name", "--model", str(corpus.parent / "tiny-elmo")),
        *("--max-batch-tokens", "8", *arguments),  # some 70 parts
    ]


def run(*command: str) -> None:
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )
    assert result.returncode == 0, result.stderr


def read_vectors(*paths: Path) -> Iterator[tuple[str, np.ndarray]]:
    for path in paths:
        table = parquet.read_table(path)
        vectors = np.array(table["vectors"].to_pylist(), np.float32)
        yield from zip(table["name"].to_pylist(), vectors, strict=True)


def check(expected: Vectors, *paths: Path) -> None:
    found = list(read_vectors(*paths))
    assert sorted(name for name, _ in found) == sorted(expected)  # each once
    for name, vectors in found:
        np.testing.assert_allclose(vectors, expected[name], rtol=0, atol=TOLERANCE)


def test_pieces_are_whole_rows_with_a_copy_of_their_vectors() -> None:
    pooled = np.ones((1, 4), np.float32)
    pooled.flags.writeable = False  # as in the memory of Ray
    rows = [Row(5, ["a", "b"]), Row(6, ["c", "d", "e"])]
    pieces = list(make_pieces(rows, [pooled, pooled]))
    assert [piece[:3] for piece in pieces] == [(0, 0, 2), (1, 0, 3)]
    pieces[0].vectors.zero_()
    assert pieces[1].vectors.tolist() == pooled.tolist()


def test_blocks_are_read_no_sooner_than_workers_need_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        local_workers, "ProcessPoolExecutor", lambda number, *_, **__: ThreadPoolExecutor(number)
    )
    read: list[int] = []

    def read_blocks() -> Iterator[list[Row]]:
        for number in range(100):
            read.append(number)
            yield [Row(number, ["a"])]

    embedder = SimpleNamespace(embed=lambda sentences: [np.zeros((1, 4))] * len(sentences))
    results = embed_in_processes(read_blocks(), embedder, 2)  # type: ignore[arg-type]
    next(results)
    assert len(read) == 2 * local_workers.WAITING_BLOCKS
    assert len(list(results)) == 99


@pytest.mark.slow
def test_workers_give_what_one_process_gives(tiny_model: ElmoModel, tiny_folder: Path) -> None:
    rows = [Row(number, words) for number, words in enumerate(SENTENCES[:30])]
    blocks = [rows[start : start + 4] for start in range(0, 30, 4)]
    embedder = SentenceEmbedder(str(tiny_folder), layers="all", threads=1)
    results = list(map(list, embed_in_processes(blocks, embedder, 2)))
    assert [len(pieces) for pieces in results] == [len(block) for block in blocks]
    expected = embed(SENTENCES[:30], tiny_model, ElmoTokenizer(), layers="all")
    for piece, vectors in zip(itertools.chain(*results), expected, strict=True):
        np.testing.assert_allclose(piece.vectors, vectors, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [[], ["--workers", "2"], ["--workers", "3"]],
    ids=" ".join,
)
def test_every_engine_gives_the_same(corpus: Path, expected: Vectors, arguments: list[str]) -> None:
    run(*COMMAND, *make_arguments(corpus, *arguments))
    check(expected, corpus.parent / "vectors.parquet")
    assert {path.name for path in corpus.parent.iterdir()} == {
        "corpus",
        "tiny-elmo",
        "vectors.parquet",
    }


@pytest.mark.slow
@pytest.mark.parametrize("num_shards", [2, 3])  # of two files: with three, all read both
def test_shards_together_give_the_same(corpus: Path, expected: Vectors, num_shards: int) -> None:
    for path in corpus.iterdir():  # a shard takes some 8,000 words at a time
        table = parquet.read_table(path)
        copies = [
            {"name": f"{row['name']}, copy {n}", "text": row["text"]}
            for n in range(20)
            for row in table.to_pylist()
        ]
        parquet.write_table(pa.Table.from_pylist(copies, table.schema), path)
    names = [f"vectors-0000{n}-of-0000{num_shards}.parquet" for n in range(1, num_shards + 1)]
    for number in range(1, num_shards + 1):
        options = ["--shard", f"{number}/{num_shards}", "--max-batch-tokens", str(400 * number)]
        run(*COMMAND, *make_arguments(corpus, *options))
    wholes = {f"{name}, copy {n}": x for name, x in expected.items() for n in range(20)}
    check(wholes, *(corpus.parent / name for name in names))


@pytest.mark.slow
def test_spark_gives_the_same(corpus: Path, expected: Vectors) -> None:
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    output = corpus.parent / "spark.parquet"
    script = ROOT / "examples" / "corpus" / "spark_embed.py"
    model = corpus.parent / "tiny-elmo"
    run(sys.executable, str(script), str(corpus), str(output), "--model", str(model))
    check(expected, *output.glob("*.parquet"))


def find_workers(driver: int) -> list[psutil.Process]:
    """Find the processes that compute for a command."""
    found = []
    for process in psutil.Process(driver).children(recursive=True):
        if re.search("spawn_main", " ".join(process.cmdline())):
            found.append(process)
    return found


@pytest.mark.faults
@pytest.mark.parametrize("whom", ["driver", "worker"])
@pytest.mark.parametrize(
    "arguments",
    [["--shard", "1/1"], ["--workers", "2"]],
    ids=" ".join,
)
def test_killed_at_random_the_same_command_completes_the_output(
    corpus: Path, expected: Vectors, arguments: list[str], whom: str
) -> None:
    if whom == "worker" and "--workers" not in arguments:
        pytest.skip("has no workers")
    chance = random.Random(f"{arguments} {whom}")
    command = [*COMMAND, *make_arguments(corpus, *arguments)]
    partial = corpus.parent / "vectors.parquet.partial"
    num_kills = 0
    for at in sorted(chance.sample(range(60), 4)):  # parts that are there when it is killed
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
            while process.poll() is None and len(list(partial.glob("*.safetensors"))) <= at:
                time.sleep(0.005)
            if process.poll() is None:
                victims = find_workers(process.pid) if whom == "worker" else [process]
                if victims:  # workers end before the driver
                    os.kill(chance.choice(victims).pid, signal.SIGKILL)
                    num_kills += 1
            process.communicate(timeout=900)
        (corpus.parent / "vectors.parquet").unlink(missing_ok=True)  # killed too late
    assert num_kills > 0
    run(*command)
    check(expected, corpus.parent / "vectors.parquet")
    assert not partial.exists()

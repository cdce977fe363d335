"""Damaged files for all readers: only the documented errors, each soon and in bounded memory.

python tests/fuzz/fuzz_readers.py --minutes 10 --seed 0 --only model
python tests/fuzz/fuzz_readers.py --minutes 10 --seed 0 --only hdf5
python tests/fuzz/fuzz_readers.py --minutes 10 --seed 0 --only task

Files of every format are damaged at random: bytes changed, taken out, repeated, cut off, put in
from a list of what is known to hurt; values of JSON replaced; numbers of weights made NaN or
infinite. A reader that raises another error than it documents, that takes 10 seconds, that asks for
1 GB more, or a model that gives NaN is a find: its files are kept, and the exit code is 1.
"""

import argparse
import bz2
import faulthandler
import gzip
import json
import lzma
import math
import random
import resource
import shutil
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "stand_ins"))

import h5py
import numpy as np
import typer
import zstandard
from bilm_tf import make_bilm, write_bilm
from huggingface_hub.errors import StrictDataclassError
from old_checkpoints import make_many_langs, write_allennlp, write_many_langs, write_nlpl
from tensorflow_checkpoint import write_trained
from transformers.utils import logging

from convert import ConversionError, convert_checkpoint
from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer
from hf_elmo.corpus.sentence_embedder import load_model
from hf_elmo.inference.embedding import embed
from hf_elmo.language_model.vocabulary import TargetVocabulary
from hf_elmo.tasks.data.documents import read_documents
from hf_elmo.tasks.data.frames import read_frames
from hf_elmo.tasks.data.sentences import read_columns, read_pairs, read_trees
from hf_elmo.tasks.squad import read_questions
from hf_elmo.tasks.static_vectors import read_static_words, read_vectors
from hf_elmo.text.text_reader import read_files

SECONDS, BYTES = 10, 1 << 30  # that a reader may take for a file of a few KB
MAX_EDITS = 4
HURTFUL = [
    b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n", b"\n\n", b"\t", b" ", b"\xe2\x80\xa8", b"(",
    b")", b"[", b"{", b"}", b'"', b"null", b"-1", b"0", b"1e999", b"NaN", b"999999999999", b"true",
    b"[[[[[[[[" * 2000, b"(" * 5000, b"B-", b"I-", b"*", b"(0", b"0)", struct.pack("<q", -1),
    struct.pack("<q", 1 << 40), struct.pack("<i", 1 << 30),
]  # fmt: skip
HURTFUL_VALUES = [
    None, True, False, -1, 0, 1, 5, 10**9, 10**30, 0.5, 1e300, math.nan, math.inf, -math.inf, "",
    "x", "bert", "float8", "\ud800", [], [1], [[1, 1]] * 10_000, [[1, 10**12]], [math.nan] * 3, {},
    {"a": {"b": []}},
]  # fmt: skip
HURTFUL_NUMBERS = [struct.pack("<f", number) for number in (math.nan, math.inf, -math.inf, 3e38)]
TEXT = "The old bank\nnaïve\n\n" * 3
CONLLU = "# x\n1\tThe\t_\t_\t_\t_\t_\t_\t_\t_\n2-3\tx\t_\t_\t_\t_\t_\t_\t_\t_\n\n" * 2
COLUMNS = "-DOCSTART- -X- O\n\nMark NNP I-PER\nWatney NNP I-PER\nat IN O\n\nMars NNP S-LOC\n"
ROW = "nw/x 0 {} {} NN (S* - - - - * {} -\n"
FRAMES = "#begin document (x);\n" + "".join(
    ROW.format(row, word, role)
    for row, (word, role) in enumerate([("The", "(ARG1*"), ("cat", "*)"), ("sat", "(V*)")])
)
SRL = (
    '{"tokens": ["The", "cat", "sat"], "frames": [{"v": 2, "args": [["ARG1", 0, 1], '
    '["V", 2, 2]]}]}\n'
)
PAIR = (
    '{"gold_label": "neutral", "sentence1_binary_parse": "( ( A boy ) . )", '
    '"sentence2_binary_parse": "( He sits )"}\n'
)
COREF = "#begin document (x); part 0\n" + "".join(
    f"x\t0\t{row}\tw{row}\t_\t{cell}\n"
    for row, cell in enumerate(["(1|(2)", "-", "(1)|1)", "(2)", "(3)"])
)
ANSWER = {"id": "1", "question": "Who sat?", "answers": [{"text": "cat", "answer_start": 8}]}
SQUAD = {"data": [{"paragraphs": [{"context": "The old cat sat.", "qas": [ANSWER]}]}]}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


class Reader(NamedTuple):
    """What reads a folder's files, what writes whole ones, and the errors that are documented."""

    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    errors: tuple[type[Exception], ...]


def find_text_readers() -> dict[str, Reader]:
    """List the readers of one text file, each with a whole file, plain and compressed."""
    kinds: dict[str, tuple[str, Callable[[Path], Any]]] = {
        "text.txt": (TEXT, lambda path: list(read_files([str(path)])(None))),
        # Not raw text: spaCy's tokenizer takes minutes for 20,000 brackets in a row.
        "text.conllu": (CONLLU, lambda path: list(read_files([str(path)], "conllu")(None))),
        "task-ner.conll": (COLUMNS, read_columns),
        "task-trees.txt": ("(3 (2 It) (4 (3 works) (2 -LRB-)))\n" * 3, read_trees),
        "task-pairs.txt": ("neutral\tA boy .\tHe sits .\n-\tA\tB\n", read_pairs),
        "task-pairs.jsonl": (PAIR, read_pairs),
        "task-srl.txt": (FRAMES, read_frames),
        "task-srl.jsonl": (SRL, read_frames),
        "task-coref.conll": (COREF, read_documents),
        "task-squad.json": (json.dumps(SQUAD), read_questions),
        "vectors.txt": ("2 2\ncat 0.5 -1\nHöhe 2 .25\n", read_vectors),
    }
    readers = {
        name + suffix: _make_text_reader(name + suffix, pack(text.encode()), read)
        for name, (text, read) in kinds.items()
        for suffix, pack in PACKERS.items()
        if not suffix or not name.startswith("vectors")
    }
    binary = b"2 2\ncat " + struct.pack("<2f", 0.5, -1) + "\nHöhe ".encode() + bytes(8)
    readers["vectors.bin"] = _make_text_reader("vectors.bin", binary, read_vectors)
    for name, read in {"target": TargetVocabulary.from_file, "static": read_static_words}.items():
        readers[name] = _make_text_reader(name, b"<S>\n</S>\n<UNK>\nthe\n", read)
    return readers


def _make_text_reader(name: str, data: bytes, read: Callable[[Path], Any]) -> Reader:
    return Reader(
        lambda folder: (folder / name).write_bytes(data),
        lambda folder: read(folder / name),
        (ValueError,),
    )


def _write_model(folder: Path) -> None:
    config = ElmoConfig(char_filters=[[1, 4], [2, 4]], projection_size=8, cell_size=16)
    ElmoModel(config).save_pretrained(folder)
    ElmoTokenizer.from_config(config).save_pretrained(folder)


def find_converters() -> dict[str, Reader]:
    """List the formats of checkpoints, each with a whole one."""
    writers: dict[str, Callable[[Path], Any]] = {
        "bilm-hdf5": lambda folder: write_bilm(folder, make_bilm()),
        "tensorflow": lambda folder: write_trained(folder, make_bilm()),
        "many-langs": lambda folder: write_many_langs(folder, make_many_langs()),
        "allennlp": lambda folder: write_allennlp(folder, make_bilm()),
        "nlpl": lambda folder: write_nlpl(folder, make_bilm()),
        "huggingface": _write_model,
    }
    writers["bilm-hdf5-chunks"] = _add_nests
    readers = {name: Reader(write, _convert, (ConversionError,)) for name, write in writers.items()}
    readers["model"] = Reader(_write_model, _embed, (ValueError, OSError, StrictDataclassError))
    return readers


def _embed(folder: Path) -> None:
    """Load a model and its tokenizer by both engines, and compute vectors that are no NaN."""
    for backend in ("torch", "onnx"):
        loaded, tokenizer = load_model(str(folder), backend=backend)
        for vectors in embed([["The", "bank"], ["a"]], loaded, tokenizer, layers="mix"):
            if not np.isfinite(vectors).all():
                raise AssertionError(f"NaN or infinity from {backend}")


def _add_nests(folder: Path) -> None:
    """Write a model in HDF5 that has what is odd already: groups in groups, chunks, a link."""
    path = write_bilm(folder, make_bilm())
    with h5py.File(path, "a") as file:
        file.create_group("/".join("abcde"))
        values = file["CNN/b_cnn_0"][...]
        del file["CNN/b_cnn_0"]
        options = {"chunks": (64,), "maxshape": (None,), "compression": "gzip", "data": values}
        file.create_dataset("CNN/b_cnn_0", **options)


def _convert(folder: Path) -> None:
    convert_checkpoint(folder, folder.with_name("converted"))


def damage(data: bytes, rng: random.Random) -> bytes:
    """Change some bytes of a file, as its format would not have them."""
    for _ in range(rng.randint(1, MAX_EDITS)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + int(rng.paretovariate(0.7)))
        kind = rng.randrange(6)
        if kind == 0 and start < len(data):
            data = data[:start] + bytes([data[start] ^ 1 << rng.randrange(8)]) + data[start + 1 :]
        elif kind == 1:
            data = data[:start] + data[end:]
        elif kind == 2:
            data = data[:end] + data[start:end] * rng.choice((1, 2, 50)) + data[end:]
        elif kind == 3 and rng.random() < 0.3:
            data = data[:start]
        else:
            data = data[:start] + rng.choice(HURTFUL) + data[start if kind == 4 else end :]
    return data


def damage_json(data: bytes, rng: random.Random) -> bytes:
    """Replace a value of a JSON object, however deep it lies, or add one."""
    content = json.loads(data)
    place: Any = content
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return data
        key = rng.choice(keys)
        if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.3:
            break
        place = place[key]
    place[key] = rng.choice(HURTFUL_VALUES)
    return json.dumps(content).encode()


def damage_file(path: Path, rng: random.Random) -> bytes:
    """Damage a file as bytes, or, where it is known how, as what they mean."""
    data = path.read_bytes()
    if rng.random() < 0.5:
        return damage(data, rng)
    if path.suffix == ".json":
        return damage_json(data, rng)
    if path.suffix == ".safetensors":
        start = 8 + int.from_bytes(data[:8], "little")
        if rng.random() < 0.5:
            header = damage_json(data[8:start], rng)
            return len(header).to_bytes(8, "little") + header + data[start:]
        place = start + 4 * rng.randrange((len(data) - start) // 4)
        return data[:place] + rng.choice(HURTFUL_NUMBERS) + data[place + 4 :]
    return damage(data, rng)


def try_once(reader: Reader, whole: Path, place: Path, seed: str) -> str | None:
    """Damage one of a reader's files and let it be read.

    Args:
        reader: The reader.
        whole: Folder of its whole files.
        place: Where its damaged files go.
        seed: Of the damage.

    Returns:
        The traceback of an error that is not documented, else None.
    """
    rng = random.Random(seed)
    folder = place / "damaged"
    shutil.copytree(whole, folder)
    path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    path.write_bytes(damage_file(path, rng))
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        reader.read(folder)
    except reader.errors:
        pass
    except Exception:  # noqa: BLE001 (a find, whatever it is)
        return f"{seed}, {path.name}\n{traceback.format_exc()}"
    finally:
        faulthandler.cancel_dump_traceback_later()
    return None


def _bound_memory() -> None:
    status = Path("/proc/self/status").read_text()
    used = int(status.partition("VmData:")[2].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + BYTES, resource.RLIM_INFINITY))


def main() -> int:
    """Fuzz all readers in turn until the time is over; return how many finds there were."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="of CPU time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="readers whose name holds this")
    parser.add_argument(
        "--finds", type=Path, default=Path("fuzz-finds"), help="folder to keep them"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    readers = find_text_readers() | find_converters()
    readers = {name: reader for name, reader in readers.items() if options.only in name}
    finds, number = 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        for name, reader in readers.items():
            (Path(temporary) / name / "whole").mkdir(parents=True)
            reader.write(Path(temporary) / name / "whole")
            reader.read(Path(temporary) / name / "whole")  # a whole one is read
        _bound_memory()
        while time.process_time() < 60 * options.minutes:
            number += 1
            for name, reader in readers.items():
                place = Path(tempfile.mkdtemp(dir=temporary))
                seed = f"{options.seed} {number} {name}"
                problem = try_once(reader, Path(temporary) / name / "whole", place, seed)
                if problem is not None:
                    finds += 1
                    typer.echo(problem)
                    shutil.copytree(place, options.finds / seed.replace(" ", "-"))
                shutil.rmtree(place)
    typer.echo(f"{number} damaged files for each of {len(readers)} readers: {finds} finds.")
    return finds


if __name__ == "__main__":
    sys.exit(min(main(), 1))

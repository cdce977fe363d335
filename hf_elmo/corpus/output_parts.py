"""Parts of an output: files that are written atomically, so that a run can resume."""

import json
import os
import re
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import chain, count, repeat, zip_longest
from math import prod
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeAlias, cast

import torch
from safetensors import SafetensorError, safe_open
from tqdm import tqdm

from hf_elmo.bilm import ElmoBilm
from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.files.output_file import replace
from hf_elmo.files.safetensors_header import make_header
from hf_elmo.inference.backend import choose_backend
from hf_elmo.inference.batches import MAX_BATCH_TOKENS, group_sentences
from hf_elmo.inference.embedding import Piece, embed_pieces
from hf_elmo.loading import ElmoPreTrainedModel
from hf_elmo.tokenization_elmo import ElmoTokenizer

from .rows import Row, Rows, Settings

PART_NAME = "{number:08d}.safetensors"
SETTINGS_NAME = "settings.json"
PARTS = "*.safetensors"
# Files in the folder for parts: the settings, parts, temporary files, the unfinished output, the
# output that it replaces, and hidden files of the operating system.
FOLDER_FILES = re.compile(
    rf"{SETTINGS_NAME}|\d{{8,}}\.safetensors|.*\.temporary|output|replaced"
    r"|\.DS_Store|\._.*|\.nfs.*|\.fuse_hidden.*"
)
LOADING = {"computation dtype", "quantization", "backend", "config"}  # settings of loading
PART_BATCHES = 4  # batches per part; an interruption loses only unfinished parts
SHARED_WORDS = PART_BATCHES * MAX_BATCH_TOKENS  # that a shard takes at a time
SENTENCES_KEY = "sentences"  # tensor of a part: its sentences as JSON in UTF-8
IDS_KEY = "ids"  # tensor of a part: the ids of its sentences as JSON in UTF-8
QUOTED_CHARACTERS = 60  # length of a quoted sentence in an error
LAYERED = 3  # number of axes of a tensor (layers, words, hidden_size)


def describe_run(
    settings: Settings, model: ElmoPreTrainedModel | ElmoBilm, tokenizer: ElmoTokenizer
) -> dict[str, Any]:
    """Return all settings that determine the vectors, as a dictionary for JSON."""
    bilm = cast(ElmoBilm, model.base_model)
    is_torch = isinstance(choose_backend(bilm), ElmoPreTrainedModel)
    return {
        **asdict(settings),
        "computation dtype": str(bilm.dtype).removeprefix("torch."),
        "quantization": bilm.quantization,
        "backend": "torch" if is_torch else "onnx",
        "config": model.config.checksum(),
        "tokenizer": tokenizer.checksum(),
        "weights": _sum_weights(model),
    }


def open_folder(folder: Path, run: dict[str, Any]) -> None:
    """Make the folder for the parts, or check that an existing one belongs to the same run."""
    path = folder / SETTINGS_NAME
    if folder.is_symlink():
        raise FileExistsError(f"Expected a folder for parts of the output, got the link {folder}.")
    folder.mkdir(parents=True, exist_ok=True)
    for found in folder.iterdir():
        if not FOLDER_FILES.fullmatch(found.name):
            raise FileExistsError(
                f"{folder} is the folder for parts of the output, but it contains {found.name}. "
                "Move this file, or choose another output."
            )
    if not path.exists() and any(folder.glob(PARTS)):
        raise FileExistsError(
            f"{folder} is the folder for parts of the output, but {SETTINGS_NAME}, which "
            "identifies its parts, is missing. Move this folder, or choose another output."
        )
    for leftover in folder.glob("*.temporary"):
        leftover.unlink()
    if not any(folder.glob(PARTS)):
        with replace(path) as temporary:
            temporary.write_text(json.dumps(run, indent=2), encoding="utf-8")
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"Expected the settings of the run in {path}, but this file is damaged. Delete the "
            f"folder {folder}, then run the same command again."
        ) from error
    # Older versions stored fewer settings.
    different = [key for key in earlier if key in run and earlier[key] != run[key]]
    if different:
        if not LOADING.isdisjoint(different):  # so the weights differ too
            different = [key for key in different if key != "weights"]
        listed = (f"{key} {earlier[key]!r} (now {run[key]!r})" for key in different)
        raise ValueError(
            f"{folder} belongs to a run with other settings: {', '.join(listed)}. "
            "Use these settings, or delete the folder."
        )


def delete_folder(folder: Path) -> None:
    """Delete the folder for the parts: the settings after the parts, which they identify."""
    for part in [] if folder.is_symlink() else folder.glob(PARTS):
        part.unlink()
    if folder.exists():
        shutil.rmtree(folder)  # refuses a link


def _sum_weights(model: ElmoPreTrainedModel | ElmoBilm) -> int:
    """Compute a checksum of the weights, to avoid mixing the parts of two models."""
    checksum = 0
    for weight in cast(Any, model).state_dict().values():
        data = weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        checksum = zlib.crc32(data.data, checksum)
    return checksum


# An engine computes the vectors of blocks of rows; it yields the pieces of each block, in order.
Engine: TypeAlias = Callable[[Iterator[list[Row]]], Iterator[Iterable[Piece]]]


def cut_blocks(rows: Rows) -> Iterator[list[Row]]:
    """Split the rows of this shard into blocks, one for each part of the output."""
    cut = partial(group_sentences, count=lambda row: len(row.words))
    num_words = PART_BATCHES * rows.settings.max_batch_tokens
    if rows.shard.total == 1 or rows.shares_files:
        return cut(rows, num_words)
    # The share of a shard depends on no setting that may differ between shards.
    units = rows.shard.take(cut(rows, SHARED_WORDS))
    return chain.from_iterable(cut(unit, num_words) for unit in units)


def embed_blocks(
    blocks: Iterable[list[Row]],
    model: ElmoPreTrainedModel | ElmoBilm,
    tokenizer: ElmoTokenizer,
    settings: Settings,
) -> Iterator[Iterator[Piece]]:
    """Compute the vectors of blocks of rows in this process; split huge sentences into pieces."""
    for block in blocks:
        yield embed_pieces(
            [row.words for row in block],
            model,
            tokenizer,
            layers=settings.layers,
            pooling=settings.pooling,
            max_batch_tokens=settings.max_batch_tokens,
            look_ahead=PART_BATCHES * settings.max_batch_tokens,
            device="cpu",
            dtype=getattr(torch, settings.dtype),
        )


def complete_parts(
    rows: Rows, folder: Path, engine: Engine, config: ElmoConfig, progress: bool
) -> list[Path]:
    """Compute the missing parts, with a progress bar; return the paths of all parts."""
    parts: list[Path] = []
    waiting: deque[tuple[Path, list[Row]]] = deque()  # blocks in computation

    def find_missing(bar: "tqdm[Any]") -> Iterator[list[Row]]:
        for block in cut_blocks(rows):
            part = folder / PART_NAME.format(number=len(parts))
            parts.append(part)
            if part.exists():
                _check_part(part, block)
            else:
                waiting.append((part, block))
                yield block
            bar.set_postfix(sentences=block[-1].number + 1, refresh=False)
            num_words = sum(len(row.words) for row in block)
            bar.update(num_words if rows.num_bytes is None else rows.position - bar.n)

    unit = "words" if rows.num_bytes is None else "B"
    with tqdm(total=rows.num_bytes, unit=unit, unit_scale=True, disable=not progress) as bar:
        for pieces in engine(find_missing(bar)):
            _write_part(*waiting.popleft(), pieces, config, rows.settings)
    if not parts:
        share = "" if rows.shard.total == 1 else f" for shard {rows.settings.shard}"
        raise ValueError(f"Expected sentences in the input{share}, found none.")
    return parts


def _check_part(part: Path, block: list[Row]) -> None:
    """Check that the part of an earlier run contains these rows.

    Raises:
        ValueError: If the part contains other rows, or is damaged.
    """
    try:
        rows = read_rows(part)
    except (SafetensorError, ValueError) as error:
        raise ValueError(
            f"{part} is damaged: {error}. Delete this file, then run the same command again."
        ) from error
    for before, now in zip_longest(rows, block):
        if before != now:
            number = (before or now).number
            raise ValueError(
                f"Expected sentence {number} to be {_quote(before)}, as when {part.parent} was "
                f"written, got {_quote(now)}. Use the same text, or delete the folder."
            )


def _quote(row: Row | None) -> str:
    if row is None:
        return "none"
    words = repr(shorten(" ".join(row.words), QUOTED_CHARACTERS))
    return words if row.id is None else f"{words} (id {row.id!r})"


def _write_part(
    part: Path, block: list[Row], pieces: Iterable[Piece], config: ElmoConfig, settings: Settings
) -> None:
    """Write a safetensors file with one tensor per sentence, named by the sentence's number.

    All shapes are known in advance, so each piece is written as soon as it is computed.
    """
    layers = (config.num_mixed_layers,) if settings.layers == "all" else ()
    tokens = [(len(row.words),) if settings.pooling == "none" else () for row in block]
    shapes = [(*layers, *length, config.hidden_size) for length in tokens]
    texts = {SENTENCES_KEY: json.dumps([row.words for row in block]).encode()}
    if settings.id_column is not None:
        texts[IDS_KEY] = json.dumps([row.id for row in block]).encode()
    tensors = {
        str(row.number): (settings.dtype, shape) for row, shape in zip(block, shapes, strict=True)
    }
    texts_sizes = {key: ("uint8", (len(text),)) for key, text in texts.items()}
    header, starts = make_header({**tensors, **texts_sizes})
    with replace(part) as temporary, temporary.open("wb") as file:
        file.write(header)
        for piece in pieces:
            shape = shapes[piece.sentence]
            num_planes = shape[0] if len(shape) == LAYERED else 1  # layers, contiguous in the file
            array = piece.vectors.contiguous().numpy().reshape(num_planes, -1)
            size = prod(shape) // num_planes
            for plane, vectors in enumerate(array):
                skipped = plane * size + piece.start * shape[-1]
                file.seek(starts[piece.sentence] + skipped * array.itemsize)
                file.write(vectors.tobytes())
        for text, start in zip(texts.values(), starts[len(block) :], strict=True):
            file.seek(start)
            file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_rows(part: Path) -> list[Row]:
    """Read the rows of a part without their vectors."""
    with safe_open(part, "np") as tensors:
        names = set(tensors.keys())
        first = min(int(name) for name in names - {SENTENCES_KEY, IDS_KEY})
        words = json.loads(tensors.get_tensor(SENTENCES_KEY).tobytes())
        ids = (
            json.loads(tensors.get_tensor(IDS_KEY).tobytes()) if IDS_KEY in names else repeat(None)
        )
    return [Row(*row) for row in zip(count(first), words, ids)]


def read_parts(parts: list[Path]) -> Iterator[tuple[Row, Any]]:
    """Yield each row and its vectors: a safetensors slice, which loads values on demand."""
    for part in parts:
        with safe_open(part, "np") as tensors:
            for row in read_rows(part):
                yield row, tensors.get_slice(str(row.number))

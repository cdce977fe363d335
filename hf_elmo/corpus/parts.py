"""The parts of an output: each a file that is complete as soon as it is there."""

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from math import prod
from pathlib import Path
from textwrap import shorten
from typing import Any, BinaryIO, Literal, TypeAlias, cast

import torch
from safetensors import safe_open
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from hf_elmo.loading import ElmoPreTrainedModel
from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.safetensors_header import make_header

from .embedding import MAX_BATCH_TOKENS, Layers, Pooling, embed_pieces, group_sentences
from .text_reader import InputFormat

OutputDtype: TypeAlias = Literal["float32", "float16"]

SETTINGS_NAME = "settings.json"
PARTS = "*.safetensors"
PART_BATCHES = 4  # batches of words that make a part: what an interruption loses at most
SENTENCES_KEY = "sentences"  # tensor of a part: its sentences as UTF-8 bytes of JSON
QUOTED_CHARACTERS = 60  # of a sentence, in an error
LAYERED = 3  # axes of a tensor (layers, words, hidden_size)


@dataclass(frozen=True)
class Settings:
    """What decides the contents of an output: an interrupted run goes on with the same only.

    Attributes:
        model: Name of the model.
        input_format: `"text"`: one tokenised sentence a line, words between white space;
            `"raw"`: text for spaCy to cut; `"conllu"`: CoNLL-U.
        pipeline: spaCy language or pipeline that cuts raw text.
        layers: As for `embed_pieces`.
        pooling: As for `embed_pieces`.
        dtype: Of the vectors in the output.
        max_batch_tokens: As for `embed_pieces`.
    """

    model: str = ""
    input_format: InputFormat = "text"
    pipeline: str = "en"
    layers: Layers = "all"
    pooling: Pooling = "none"
    dtype: OutputDtype = "float32"
    max_batch_tokens: int = MAX_BATCH_TOKENS


def describe_run(settings: Settings, model: ElmoPreTrainedModel) -> dict[str, Any]:
    """Describe all that decides the vectors but the text, in what JSON can hold."""
    return {
        **asdict(settings),
        "quantization": cast(ElmoModel, model.base_model).quantization,
        "weights": _sum_weights(model),
    }


def open_folder(folder: Path, run: dict[str, Any]) -> None:
    """Make the folder of the parts, or check that it holds the beginning of the same run."""
    path = folder / SETTINGS_NAME
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():  # a run was killed while it deleted the folder
        for part in folder.glob(PARTS):
            part.unlink()
    for leftover in folder.glob("*.temporary"):
        leftover.unlink()
    if not any(folder.glob(PARTS)):
        with replace(path) as temporary:
            temporary.write_text(json.dumps(run, indent=2))
    begun = json.loads(path.read_text())
    different = [
        f"{key} {begun.get(key)!r} (now {value!r})"
        for key, value in run.items()
        if begun.get(key) != value
    ]
    if different:
        raise ValueError(
            f"{folder} holds the beginning of something else, with {', '.join(different)}. "
            "Go on with that, or delete the folder."
        )


def _sum_weights(model: ElmoPreTrainedModel) -> int:
    """Compute a checksum of the weights, so that parts of two models are never mixed."""
    checksum = 0
    for parameter in model.parameters():
        data = parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        checksum = zlib.crc32(data.data, checksum)
    return checksum


@contextmanager
def replace(path: Path) -> Iterator[Path]:
    """Yield a temporary path; put what was written there in the place of `path`, or nothing."""
    temporary = path.with_name(path.name + ".temporary")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_parts(
    sentences: Iterable[Sequence[str]],
    stream: BinaryIO,
    folder: Path,
    model: ElmoPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: Settings,
    progress: bool,
    rank: int,
    num_ranks: int,
) -> list[Path]:
    """Compute the parts that are this process's and not there yet; return the paths of all."""
    parts: list[Path] = []
    first = 0
    with _show_progress(stream, progress and rank == 0) as bar:
        for block in group_sentences(sentences, PART_BATCHES * settings.max_batch_tokens):
            part = folder / f"{len(parts):08d}.safetensors"
            if part.exists():
                _check_part(part, block, first)
            elif len(parts) % num_ranks == rank:
                _write_part(part, block, first, model, tokenizer, settings)
            parts.append(part)
            first += len(block)
            bar.set_postfix(sentences=first, refresh=False)
            bar.update(stream.tell() - bar.n if stream.seekable() else sum(map(len, block)))
    if not parts:
        raise ValueError("The input holds no sentence.")
    return parts


def _show_progress(stream: BinaryIO, is_shown: bool) -> "tqdm[Any]":
    total = None
    if stream.seekable():
        start, total = stream.tell(), stream.seek(0, os.SEEK_END)
        stream.seek(start)
    return tqdm(total=total, unit="B", unit_scale=True, disable=not is_shown)


def _check_part(part: Path, block: list[Sequence[str]], first: int) -> None:
    """Check that an earlier run's part is of these sentences."""
    for number, (before, now) in enumerate(zip_longest(read_words(part), block), start=first):
        if before != now:
            raise ValueError(
                f"Expected sentence {number} to be {_quote(before)}, as when {part.parent} was "
                f"begun, got {_quote(now)}. Go on with the same text, or delete the folder."
            )


def _quote(words: Sequence[str] | None) -> str:
    return "none" if words is None else repr(shorten(" ".join(words), QUOTED_CHARACTERS))


def read_words(part: Path) -> list[list[str]]:
    """Read the sentences of a part."""
    with safe_open(part, "np") as tensors:
        return json.loads(tensors.get_tensor(SENTENCES_KEY).tobytes())


def _write_part(
    part: Path,
    block: list[Sequence[str]],
    first: int,
    model: ElmoPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: Settings,
) -> None:
    """Write a safetensors file with a tensor for each sentence, named by its number.

    Their shapes are known beforehand, so that it is written piece by piece and none is ever whole.
    """
    pieces = embed_pieces(
        block,
        model,
        tokenizer,
        layers=settings.layers,
        pooling=settings.pooling,
        max_batch_tokens=settings.max_batch_tokens,
        look_ahead=PART_BATCHES * settings.max_batch_tokens,
        device="cpu",
        dtype=getattr(torch, settings.dtype),
    )
    layers = (model.config.num_hidden_layers + 1,) if settings.layers == "all" else ()
    tokens = [(len(words),) if settings.pooling == "none" else () for words in block]
    shapes = [(*layers, *length, model.config.hidden_size) for length in tokens]
    text = json.dumps(block).encode()
    tensors = {str(number): (settings.dtype, shape) for number, shape in enumerate(shapes, first)}
    header, (*starts, end) = make_header({**tensors, SENTENCES_KEY: ("uint8", (len(text),))})
    with replace(part) as temporary, temporary.open("wb") as file:
        file.write(header)
        for piece in pieces:
            shape = shapes[piece.sentence]
            num_planes = shape[0] if len(shape) == LAYERED else 1  # each contiguous in the file
            array = piece.vectors.contiguous().numpy().reshape(num_planes, -1)
            size = prod(shape) // num_planes
            for plane, rows in enumerate(array):
                skipped = plane * size + piece.start * shape[-1]
                file.seek(starts[piece.sentence] + skipped * array.itemsize)
                file.write(rows.tobytes())
        file.seek(end)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_parts(parts: list[Path]) -> Iterator[tuple[list[str], Any]]:
    """Read the words of each sentence and its tensor, as a slice that is not loaded yet."""
    for part in parts:
        with safe_open(part, "np") as tensors:
            first = min(int(name) for name in set(tensors.keys()) - {SENTENCES_KEY})
            for number, words in enumerate(read_words(part), start=first):
                yield words, tensors.get_slice(str(number))

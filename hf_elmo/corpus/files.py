"""Vectors of whole files: text, raw text or CoNLL-U in; HDF5, npz, safetensors or DocBin out."""

import errno
import json
import os
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import accumulate, count, pairwise, product, zip_longest
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, cast, get_args

import numpy as np
import torch
from safetensors import safe_open
from torch import distributed
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from hf_elmo.loading import ElmoPreTrainedModel
from hf_elmo.modeling_elmo import ElmoModel

from .embedding import BATCH_TOKENS, Layers, Pooling, embed_pieces, group_sentences

InputFormat: TypeAlias = Literal["text", "raw", "conllu"]
OutputFormat: TypeAlias = Literal["hdf5", "npz", "safetensors", "spacy"]
OutputDtype: TypeAlias = Literal["float32", "float16"]

SUFFIXES: dict[str, OutputFormat] = {
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".npz": "npz",
    ".safetensors": "safetensors",
    ".spacy": "spacy",
}
SETTINGS_NAME = "settings.json"
PARTS = "*.safetensors"
PART_BATCHES = 4  # batches of words that make a part: what an interruption loses at most
SENTENCES_KEY = "sentences"  # tensor of a part: its sentences as UTF-8 bytes of JSON
COPY_ROWS = 4096  # rows of vectors that are copied at a time
DATASET_BYTES = 1024  # what HDF5 needs for a dataset beside its data, rather more than less
LAYERED = 3  # axes of a tensor (layers, words, hidden_size)
NUM_CONLLU_COLUMNS = 10

Shape: TypeAlias = tuple[int, ...]


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
        batch_tokens: As for `embed_pieces`.
    """

    model: str = ""
    input_format: InputFormat = "text"
    pipeline: str = "en"
    layers: Layers = "all"
    pooling: Pooling = "none"
    dtype: OutputDtype = "float32"
    batch_tokens: int = BATCH_TOKENS


def embed_file(
    source: Path | BinaryIO,
    output: Path,
    model: ElmoPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: Settings,
    *,
    output_format: str | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> None:
    """Write the vectors of each sentence of a file.

    The sentences are computed in parts, each a file that is complete as soon as it is there, in the
    folder `OUTPUT.partial`. The same call after an interruption goes on behind the last of them.
    Where `torch.distributed` is initialised, its processes share the parts, and the first makes
    one output of them.

    Args:
        source: The text, a file or a binary stream.
        output: File (HDF5, npz) or folder (safetensors, spaCy) to write.
        model: The biLM, or a model that holds one, in evaluation mode.
        tokenizer: Its tokenizer.
        settings: What to write.
        output_format: How to write it; None = by the output's suffix.
        overwrite: Whether an output that is there already is replaced.
        progress: Whether a progress bar is shown.

    Raises:
        ValueError: If the input is malformed or empty, or an argument is, or the folder
            `OUTPUT.partial` holds the beginning of something else.
        FileExistsError: If the output is there and is not to be replaced.
        OSError: If a file cannot be read or written. What is complete is kept.
    """
    write = WRITERS[find_format(output, output_format)]
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output} is there already: use another name, or pass --overwrite.")
    with source.open("rb") if isinstance(source, Path) else nullcontext(source) as stream:
        folder = output.with_name(output.name + ".partial")
        rank, num_ranks = _meet()
        if rank == 0:
            _open_folder(folder, settings, model)
        _meet()
        try:
            parts = _write_parts(
                stream, folder, model, tokenizer, settings, progress, rank, num_ranks
            )
        finally:
            if rank == 0 and not any(folder.glob(PARTS)):
                shutil.rmtree(folder)
        _meet()
    if rank == 0:
        _write_output(parts, output, folder, write)
    _meet()


def _meet() -> tuple[int, int]:
    """Wait for all processes; give the number of this one, and how many there are."""
    if not distributed.is_initialized():
        return 0, 1
    distributed.barrier()
    return distributed.get_rank(), distributed.get_world_size()


def find_format(output: Path, output_format: str | None) -> OutputFormat:
    """Find the format of an output by its name, unless it is given.

    Raises:
        ValueError: If neither tells it.
    """
    known = get_args(OutputFormat)
    found = output_format or SUFFIXES.get(output.suffix)
    for name in known:
        if found == name:
            return name
    raise ValueError(
        f"Cannot tell the format of {str(output)!r}: expected a name that ends in one of "
        f"{', '.join(SUFFIXES)}, or a format, one of {', '.join(known)}."
    )


def read_sentences(
    stream: Iterable[bytes], input_format: InputFormat, pipeline: str = "en"
) -> Iterator[list[str]]:
    """Read the sentences of a text.

    Args:
        stream: Lines, each with its end.
        input_format: As in `Settings`.
        pipeline: spaCy language or pipeline that cuts raw text.

    Returns:
        An iterator of sentences. An empty line of `"text"` is an empty sentence.

    Raises:
        ValueError: If a line is not UTF-8, or not what the format asks for.
    """
    lines = _decode(stream)
    if input_format == "conllu":
        return _read_conllu(lines)
    if input_format == "raw":
        return _read_raw(lines, pipeline)
    return (line.split() for line in lines)


def _decode(stream: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"Line {number} is not UTF-8: byte {line[error.start]:#04x} in column "
                f"{error.start + 1}. Convert the text first, as with iconv -f latin1 -t utf-8."
            ) from error
        yield text.removeprefix("\ufeff") if number == 1 else text


def _read_conllu(lines: Iterable[str]) -> Iterator[list[str]]:
    """Read the forms of the syntactic words: no ranges (3-4), no empty nodes (3.1)."""
    words: list[str] = []
    for number, line in enumerate(lines, start=1):
        if line.startswith("#"):
            continue
        columns = line.rstrip("\r\n").split("\t")
        if not line.strip():
            if words:
                yield words
            words = []
        elif len(columns) != NUM_CONLLU_COLUMNS:
            raise ValueError(
                f"Line {number} is not CoNLL-U: expected {NUM_CONLLU_COLUMNS} columns between "
                f"tabs, got {len(columns)}."
            )
        elif columns[0].isdigit():
            words.append(columns[1])
    if words:
        yield words


def _read_raw(lines: Iterable[str], pipeline: str) -> Iterator[list[str]]:
    """Cut each line into sentences and words with spaCy; white space is no word."""
    import spacy

    if spacy.util.is_package(pipeline) or Path(pipeline).exists():
        nlp = spacy.load(pipeline)
    else:
        try:
            nlp = spacy.blank(pipeline)
        except ImportError as error:
            raise ValueError(
                f"Expected a spaCy language or pipeline, got {pipeline!r}. To install one, see "
                "python -m spacy download."
            ) from error
        nlp.add_pipe("sentencizer")
        nlp.max_length = sys.maxsize  # the bound is for parsers
    for doc in nlp.pipe(text for text in map(str.strip, lines) if text):
        for sentence in doc.sents if doc.has_annotation("SENT_START") else [doc[:]]:
            yield [token.text for token in sentence if not token.is_space]


def _show_progress(stream: BinaryIO, is_shown: bool) -> "tqdm[Any]":
    total = None
    if stream.seekable():
        start, total = stream.tell(), stream.seek(0, os.SEEK_END)
        stream.seek(start)
    return tqdm(total=total, unit="B", unit_scale=True, disable=not is_shown)


def _open_folder(folder: Path, settings: Settings, model: ElmoPreTrainedModel) -> None:
    """Make the folder of the parts, or check that it holds the beginning of the same."""
    wanted = {
        **asdict(settings),
        "quantization": cast(ElmoModel, model.base_model).quantization,
        "weights": _sum_weights(model),
    }
    path = folder / SETTINGS_NAME
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob("*.temporary"):
        leftover.unlink()
    if not any(folder.glob(PARTS)):
        with _replace(path) as temporary:
            temporary.write_text(json.dumps(wanted, indent=2))
    begun = json.loads(path.read_text())
    different = [f"{key} {begun.get(key)!r}" for key in wanted if begun.get(key) != wanted[key]]
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
def _replace(path: Path) -> Iterator[Path]:
    """Give a temporary path; put what was written there in the place of `path`, all or nothing."""
    temporary = path.with_name(path.name + ".temporary")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_parts(
    stream: BinaryIO,
    folder: Path,
    model: ElmoPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: Settings,
    progress: bool,
    rank: int,
    num_ranks: int,
) -> list[Path]:
    """Compute the parts that are this process's and not there yet; give the paths of all."""
    parts: list[Path] = []
    first = 0
    sentences = read_sentences(stream, settings.input_format, settings.pipeline)
    with _show_progress(stream, progress and rank == 0) as bar:
        for block in group_sentences(sentences, PART_BATCHES * settings.batch_tokens):
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


def _check_part(part: Path, block: list[Sequence[str]], first: int) -> None:
    """Check that an earlier run's part is of these sentences."""
    for number, (before, now) in enumerate(zip_longest(_read_words(part), block), start=first):
        if before != now:
            raise ValueError(
                f"Sentence {number} is not the one that was there when {part.parent} was begun. "
                "Go on with the same text, or delete the folder."
            )


def _read_words(part: Path) -> list[list[str]]:
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
        batch_tokens=settings.batch_tokens,
        look_ahead=PART_BATCHES * settings.batch_tokens,
        device="cpu",
        dtype=getattr(torch, settings.dtype),
    )
    layers = (model.config.num_hidden_layers + 1,) if settings.layers == "all" else ()
    tokens = [(len(words),) if settings.pooling == "none" else () for words in block]
    shapes = [(*layers, *length, model.config.hidden_size) for length in tokens]
    text = json.dumps(block).encode()
    header, starts, end = _describe_tensors(first, shapes, settings.dtype, len(text))
    with _replace(part) as temporary, temporary.open("wb") as file:
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


def _describe_tensors(
    first: int, shapes: list[Shape], dtype: OutputDtype, text_size: int
) -> tuple[bytes, list[int], int]:
    """Make the header of a safetensors file; find where in it each tensor and the text begin."""
    itemsize = np.dtype(dtype).itemsize
    edges = [0, *accumulate(prod(shape) * itemsize for shape in shapes)]
    table = {
        str(number): {"dtype": f"F{8 * itemsize}", "shape": shape, "data_offsets": [start, stop]}
        for number, shape, (start, stop) in zip(count(first), shapes, pairwise(edges), strict=False)
    }
    table[SENTENCES_KEY] = {
        "dtype": "U8",
        "shape": (text_size,),
        "data_offsets": [edges[-1], edges[-1] + text_size],
    }
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)  # so that the data are aligned
    header = len(text).to_bytes(8, "little") + text
    *starts, end = (len(header) + edge for edge in edges)
    return header, starts, end


def _write_output(
    parts: list[Path], output: Path, folder: Path, write: Callable[[list[Path], Path], None]
) -> None:
    """Make one output of the parts; delete them when it is there."""
    temporary = folder / "output"
    _delete(temporary)  # of an interrupted run
    write(parts, temporary)
    _delete(output)
    temporary.replace(output)
    shutil.rmtree(folder)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_hdf5(parts: list[Path], output: Path) -> None:
    """Write AllenNLP's layout: a dataset a sentence, and which sentence is where.

    The keys are the numbers of the sentences. `sentence_to_index` is one string of JSON
    (allennlp/commands/elmo.py).
    """
    import h5py

    _check_space(parts, output)
    index = []
    with h5py.File(output, "w") as file:
        for number, (words, tensor) in enumerate(_read_parts(parts)):
            index.append(f'{json.dumps(" ".join(words))}: "{number}"')
            shape = tensor.get_shape()
            dataset = file.create_dataset(str(number), shape, _find_dtype(tensor))
            for place in _cut(shape):
                dataset[place] = tensor[place]
        dataset = file.create_dataset("sentence_to_index", (1,), h5py.string_dtype())
        dataset[0] = f"{{{', '.join(index)}}}"


def _check_space(parts: list[Path], output: Path) -> None:
    """Check beforehand that an HDF5 file fits: HDF5 does not survive a disk that fills up."""
    num_datasets = 0
    for part in parts:
        with safe_open(part, "np") as tensors:
            num_datasets += len(tensors.keys())
    needed = sum(part.stat().st_size for part in parts) + num_datasets * DATASET_BYTES
    free = shutil.disk_usage(output.parent).free
    if needed > free:
        reason = f"{os.strerror(errno.ENOSPC)} ({needed} bytes needed, {free} free)"
        raise OSError(errno.ENOSPC, reason, str(output))


def write_npz(parts: list[Path], output: Path) -> None:
    """Write an array a sentence, named by its number, to a file for `numpy.load`."""
    with zipfile.ZipFile(output, "w") as archive:
        for number, (_, tensor) in enumerate(_read_parts(parts)):
            shape = tuple(tensor.get_shape())
            with archive.open(f"{number}.npy", "w", force_zip64=True) as file:
                descr = np.lib.format.dtype_to_descr(_find_dtype(tensor))
                header = {"descr": descr, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for place in _cut(shape):
                    file.write(tensor[place].tobytes())


def write_safetensors(parts: list[Path], output: Path) -> None:
    """Write a folder of the parts themselves and an `index.json`: which sentence is in which."""
    output.mkdir()
    index = {}
    first = 0
    for part in parts:
        _link(part, output / part.name)
        numbers = range(first, first + len(_read_words(part)))
        index.update({str(number): part.name for number in numbers})
        first = numbers.stop
    (output / "index.json").write_text(json.dumps({"weight_map": index}))


def _link(path: Path, target: Path) -> None:
    """Give a file a second name, or copy it where files have but one."""
    try:
        target.hardlink_to(path)
    except OSError:
        shutil.copy(path, target)


def write_docbin(parts: list[Path], output: Path) -> None:
    """Write a folder of spaCy's DocBin files, a doc a sentence.

    The vectors are where `spacy_elmo` keeps them too, since a DocBin has no tensors:
    `doc.user_data["elmo_layers"]` `(layers, tokens, hidden_size)`, `"elmo_vectors"`
    `(tokens, hidden_size)`; pooled ones in `"elmo_pooled"`.
    """
    from spacy.tokens import Doc, DocBin
    from spacy.vocab import Vocab

    output.mkdir()
    settings = json.loads((parts[0].parent / SETTINGS_NAME).read_text())
    kind = "elmo_layers" if settings["layers"] == "all" else "elmo_vectors"
    kind = kind if settings["pooling"] == "none" else "elmo_pooled"
    vocab = Vocab()
    for part in parts:
        docs = []
        for words, tensor in _read_parts([part]):
            vectors = np.empty(tensor.get_shape(), _find_dtype(tensor))
            for place in _cut(vectors.shape):
                vectors[place] = tensor[place]
            docs.append(Doc(vocab, words=words, user_data={kind: vectors}))
        DocBin(store_user_data=True, docs=docs).to_disk(output / f"{part.stem}.spacy")


def _read_parts(parts: list[Path]) -> Iterator[tuple[list[str], Any]]:
    """Read the words of each sentence and its tensor, as a slice that is not loaded yet."""
    for part in parts:
        with safe_open(part, "np") as tensors:
            first = min(int(name) for name in set(tensors.keys()) - {SENTENCES_KEY})
            for number, words in enumerate(_read_words(part), start=first):
                yield words, tensors.get_slice(str(number))


def _find_dtype(tensor: Any) -> "np.dtype[Any]":
    return np.dtype({"F32": np.float32, "F16": np.float16}[tensor.get_dtype()])


def _cut(shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Cut an array into places of bounded size, in the order of its memory."""
    if len(shape) == 1:
        yield (slice(None),)
        return
    *planes, num_rows, _ = shape
    for plane in product(*map(range, planes)):
        for start in range(0, num_rows, COPY_ROWS):
            rows = slice(start, min(start + COPY_ROWS, num_rows))
            yield (*(slice(number, number + 1) for number in plane), rows)


WRITERS: dict[OutputFormat, Callable[[list[Path], Path], None]] = {
    "hdf5": write_hdf5,
    "npz": write_npz,
    "safetensors": write_safetensors,
    "spacy": write_docbin,
}

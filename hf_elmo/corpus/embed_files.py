"""Vectors of whole files: text, raw text or CoNLL-U in; HDF5, npz, safetensors or DocBin out."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, get_args

from torch import distributed
from transformers import PreTrainedTokenizerBase

from hf_elmo.loading import ElmoPreTrainedModel
from hf_elmo.output_lock import LOCK, lock_output

from .parts import PARTS, Settings, describe_run, open_folder, replace, write_parts
from .text_reader import decompress, read_sentences
from .writers import SUFFIXES, WRITERS, OutputFormat


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
        source: The text: a file, compressed if its suffix says so, or a binary stream.
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
        BlockingIOError: If another process is writing the output.
        OSError: If a file cannot be read or written. What is complete is kept.
    """
    write = WRITERS[find_format(output, output_format)]
    folder = output.with_name(output.name + ".partial")
    receipt = output.with_name(output.name + ".finished")
    digest = hashlib.sha256()
    lock = output.with_name(f".{output.name}{LOCK}")
    with (
        lock_output(output, lock),
        source.open("rb") if isinstance(source, Path) else nullcontext(source) as stream,
    ):
        sentences = _digest(_read(stream, source, settings), digest)
        run = describe_run(settings, model)
        rank, num_ranks = _wait_for_all()
        if output.exists() and not overwrite:
            _check_finished(output, folder, receipt, run, sentences, digest)
        else:
            if rank == 0:
                receipt.unlink(missing_ok=True)
                open_folder(folder, run)
            _wait_for_all()
            try:
                parts = write_parts(
                    sentences, stream, folder, model, tokenizer, settings, progress, rank, num_ranks
                )
            finally:
                if rank == 0 and not any(folder.glob(PARTS)):
                    shutil.rmtree(folder)
            _wait_for_all()
            if rank == 0:
                _delete(folder / "output")  # of an interrupted run
                write(parts, folder / "output")
                _write_receipt(receipt, run, digest)
                if output.is_dir():
                    shutil.rmtree(output)
                (folder / "output").replace(output)
        _wait_for_all()
        if rank == 0:
            _delete(folder)
            receipt.unlink()
        _wait_for_all()


def _write_receipt(receipt: Path, run: dict[str, Any], digest: "hashlib._Hash") -> None:
    """Note what an output was made of, from before it is in its place until all is tidied up."""
    with replace(receipt) as temporary:
        temporary.write_text(json.dumps(run | {"sentences": digest.hexdigest()}))


def _digest(sentences: Iterable[list[str]], digest: "hashlib._Hash") -> Iterator[list[str]]:
    """Yield sentences, and note what they are."""
    for words in sentences:
        digest.update(json.dumps(words).encode())
        yield words


def _check_finished(
    output: Path,
    folder: Path,
    receipt: Path,
    run: dict[str, Any],
    sentences: Iterator[list[str]],
    digest: "hashlib._Hash",
) -> None:
    """Check that an output was made by the same run, killed while it tidied up.

    Raises:
        FileExistsError: If it was not.
    """
    is_finished = receipt.exists() and not (folder / "output").exists()
    if is_finished:
        for _ in sentences:
            pass
        is_finished = json.loads(receipt.read_text()) == run | {"sentences": digest.hexdigest()}
    if not is_finished:
        raise FileExistsError(f"{output} is there already: use another name, or pass --overwrite.")


def _wait_for_all() -> tuple[int, int]:
    """Wait for all processes; return the number of this one, and how many there are."""
    if not distributed.is_initialized():
        return 0, 1
    distributed.barrier()
    return distributed.get_rank(), distributed.get_world_size()


def _read(stream: BinaryIO, source: Path | BinaryIO, settings: Settings) -> Iterator[list[str]]:
    name = str(source) if isinstance(source, Path) else "the input"
    stream = decompress(stream, name)
    return read_sentences(stream, settings.input_format, settings.pipeline, name)


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


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

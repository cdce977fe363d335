"""Vectors of whole files: text, CoNLL-U or parquet in; HDF5, npz, parquet or the like out."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, get_args

from torch import distributed
from transformers import PreTrainedTokenizerBase

from hf_elmo.bilm import ElmoBilm
from hf_elmo.files.output_lock import LOCK, lock_output
from hf_elmo.loading import ElmoPreTrainedModel

from .output_parts import (
    PARTS,
    Engine,
    describe_run,
    embed_blocks,
    find_folder,
    open_folder,
    write_parts,
)
from .rows import Rows
from .settings import Settings
from .writers import FOLDER_INDEX, SUFFIXES, WRITERS, OutputFormat


def embed_file(
    source: str | Path | BinaryIO,
    output: Path,
    model: ElmoPreTrainedModel | ElmoBilm,
    tokenizer: PreTrainedTokenizerBase,
    settings: Settings,
    *,
    output_format: str | None = None,
    overwrite: bool = False,
    progress: bool = False,
    engine: Engine | None = None,
) -> None:
    """Write the vectors of each sentence of a corpus.

    The sentences are computed in parts, each a file that is complete as soon as it is there, in the
    folder `OUTPUT.partial`. The same call after an interruption goes on behind the last of them.
    Where `torch.distributed` is initialised, its processes share the parts, and the first makes
    one output of them.

    Args:
        source: The corpus, as for `Rows`: files, compressed if their suffix says so, or a stream.
        output: File (HDF5, npz, parquet) or folder (safetensors, spaCy) to write.
        model: The biLM, or a model that holds one, in evaluation mode.
        tokenizer: Its tokenizer.
        settings: What to write.
        output_format: How to write it; None = by the output's suffix.
        overwrite: Whether an output that is there already is replaced.
        progress: Whether a progress bar is shown.
        engine: Who computes, with the same model and settings; None = this process.

    Raises:
        ValueError: If the input is malformed or empty, or an argument is, or the folder
            `OUTPUT.partial` holds the beginning of something else.
        FileExistsError: If the output is there and is not to be replaced, or is no such output.
        BlockingIOError: If another process is writing the output.
        OSError: If a file cannot be read or written. What is complete is kept.
    """
    kind = find_format(output, output_format)
    if settings.id_column is not None and kind != "parquet":
        raise ValueError(
            f"Expected a parquet output, which holds ids, with an id column, got {kind}."
        )
    folder = find_folder(output)
    receipt = output.with_name(output.name + ".finished")
    with lock_output(output, output.with_name(f".{output.name}{LOCK}")):
        rows = Rows(source, settings)
        if overwrite:
            _check_replaceable(output, rows)
        run = describe_run(settings, model)
        engine = engine or partial(
            embed_blocks, model=model, tokenizer=tokenizer, settings=settings
        )
        rank, num_ranks = _wait_for_all()
        if output.exists() and not overwrite:
            _check_finished(output, folder, receipt, run, rows)
        else:
            if rank == 0:
                receipt.unlink(missing_ok=True)
                open_folder(folder, run)
            _wait_for_all()
            try:
                parts = write_parts(rows, folder, engine, model.config, progress, rank, num_ranks)
            finally:
                if rank == 0 and not any(folder.glob(PARTS)):
                    shutil.rmtree(folder)
            _wait_for_all()
            if rank == 0:
                _delete(folder / "output")  # of an interrupted run
                WRITERS[kind](parts, folder / "output")
                _write_receipt(receipt, folder, run, rows)
                if output.is_dir():
                    shutil.rmtree(output)
                (folder / "output").replace(output)
        _wait_for_all()
        if rank == 0:
            _delete(folder)
    if rank == 0:  # after the lock: as long as anything is left, the same command tidies up
        receipt.unlink(missing_ok=True)
    _wait_for_all()


def _check_replaceable(output: Path, rows: Rows) -> None:
    """Check that what would be replaced is no input, and no folder of other things.

    Raises:
        FileExistsError: If it is.
    """
    if any(
        Path(name).exists() and output.exists() and output.samefile(name) for name in rows.files
    ):
        raise FileExistsError(f"{output} is what is to be read: choose another output.")
    names = [path.name for path in output.iterdir()] if output.is_dir() else []
    if FOLDER_INDEX not in names and not all(name.endswith(".spacy") for name in names):
        raise FileExistsError(f"{output} is a folder of other files: choose another output.")


def _write_receipt(receipt: Path, folder: Path, run: dict[str, Any], rows: Rows) -> None:
    """Note what an output was made of, from before it is in its place until all is tidied up."""
    temporary = folder / "receipt.temporary"  # where the next run tidies up
    temporary.write_text(json.dumps(run | {"rows": rows.digest.hexdigest()}))
    temporary.replace(receipt)


def _check_finished(
    output: Path, folder: Path, receipt: Path, run: dict[str, Any], rows: Rows
) -> None:
    """Check that an output was made by the same run, killed while it tidied up.

    Raises:
        FileExistsError: If it was not.
    """
    is_finished = receipt.exists() and not (folder / "output").exists()
    if is_finished:
        for _ in rows:
            pass
        is_finished = json.loads(receipt.read_text()) == run | {"rows": rows.digest.hexdigest()}
    if not is_finished:
        raise FileExistsError(f"{output} is there already: use another name, or pass --overwrite.")


def _wait_for_all() -> tuple[int, int]:
    """Wait for all processes; return the number of this one, and how many there are."""
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


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

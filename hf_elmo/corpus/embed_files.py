"""Embed files: read text, CoNLL-U or parquet; write HDF5, npz, parquet and others."""

import json
import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from hf_elmo.bilm import ElmoBilm
from hf_elmo.files.output_file import find_place
from hf_elmo.loading import ElmoPreTrainedModel
from hf_elmo.tokenization_elmo import ElmoTokenizer

from .output_parts import (
    PARTS,
    Engine,
    complete_parts,
    delete_folder,
    describe_run,
    embed_blocks,
    open_folder,
)
from .rows import Rows, Settings
from .writers import FOLDER_INDEX, SUFFIXES, WRITERS, OutputFormat

OUTPUT_PART = re.compile(r"\d{8,}\.(safetensors|spacy)")  # file in an output folder


def embed_file(
    source: str | Path | BinaryIO,
    output: Path,
    model: ElmoPreTrainedModel | ElmoBilm,
    tokenizer: ElmoTokenizer,
    settings: Settings,
    *,
    output_format: OutputFormat | None = None,
    overwrite: bool = False,
    progress: bool = False,
    engine: Engine | None = None,
) -> None:
    """Write the vectors of all sentences of a corpus.

    Sentences are processed in parts, which are written atomically to the folder `OUTPUT.partial`.
    After an interruption, the same call computes only the missing parts.

    Args:
        source: Files (also compressed) or a stream, as for `Rows`.
        output: File (HDF5, npz, parquet) or folder (safetensors, spaCy) to write. A symbolic link
            is kept: the file or folder to which it points is written.
        model: biLM, or a model that contains one, in evaluation mode.
        tokenizer: Tokenizer of the model.
        settings: Settings of the output.
        output_format: Output format; None = by the output's suffix.
        overwrite: Whether to replace an existing output.
        progress: Whether to show a progress bar.
        engine: Computes the vectors, with the same model and settings; None = this process does.

    Raises:
        ValueError: If the input is malformed or empty, an argument is invalid, or the folder
            `OUTPUT.partial` belongs to another run.
        FileExistsError: If the output exists and must not be replaced, or is a device.
        OSError: If a file cannot be read or written. Complete parts are kept.
    """
    kind = find_format(output, output_format)
    if settings.id_column is not None and kind != "parquet":
        raise ValueError(f"Expected a parquet output with an id column, got {kind}.")
    named, output = output, find_place(output)
    folder = output.with_name(output.name + ".partial")
    receipt = output.with_name(output.name + ".finished")
    rows = Rows(source, settings, named)
    if receipt.exists() and not _is_receipt(receipt):
        raise FileExistsError(f"{receipt} would be lost. Move it, or choose another output.")
    if overwrite:
        _check_replaceable(output, rows)
    run = describe_run(settings, model, tokenizer)
    engine = engine or partial(embed_blocks, model=model, tokenizer=tokenizer, settings=settings)
    if output.exists() and not overwrite:
        _check_finished(output, folder, receipt, run, rows)
    else:
        receipt.unlink(missing_ok=True)
        open_folder(folder, run)
        try:
            parts = complete_parts(rows, folder, engine, model.config, progress)
        finally:
            if not any(folder.glob(PARTS)):
                delete_folder(folder)
        _write_output(kind, parts, folder / "output")
        _write_receipt(receipt, folder, run, rows)
        _delete(folder / "replaced")
        if output.exists() and (output.is_dir() or (folder / "output").is_dir()):
            output.replace(folder / "replaced")
        (folder / "output").replace(output)
    delete_folder(folder)
    receipt.unlink(missing_ok=True)  # last, so that the same call can resume the cleanup


def _check_replaceable(output: Path, rows: Rows) -> None:
    """Refuse to replace the input, or a folder with files that `embed` has not written."""
    if any(
        Path(name).exists() and output.exists() and output.samefile(name)
        for name in [*rows.files, *rows.left_out]
    ):
        raise FileExistsError(
            f"{output} is the input. Choose another output, or delete it if it is an old one."
        )
    names = sorted(path.name for path in output.iterdir()) if output.is_dir() else []
    others = [name for name in names if not OUTPUT_PART.fullmatch(name)]
    if others and (others != [FOLDER_INDEX] or others == names):
        raise FileExistsError(
            f"{output} contains {others[0]}, which is not part of an output. Choose another output."
        )


def _is_receipt(path: Path) -> bool:
    try:
        return "rows" in json.loads(path.read_text("utf-8"))
    except (OSError, TypeError, ValueError):
        return False


def _write_receipt(receipt: Path, folder: Path, run: dict[str, Any], rows: Rows) -> None:
    """Write the file that identifies a run with a complete output; the cleanup deletes it last."""
    temporary = folder / "receipt.temporary"  # in the folder, so that the next run deletes it
    temporary.write_text(json.dumps(run | {"rows": rows.digest.hexdigest()}), encoding="utf-8")
    temporary.replace(receipt)


def _check_finished(
    output: Path, folder: Path, receipt: Path, run: dict[str, Any], rows: Rows
) -> None:
    """Refuse an existing output, unless an equal run wrote it and was killed during its cleanup."""
    is_finished = receipt.exists() and not (folder / "output").exists()
    if is_finished:
        for _ in rows:
            pass
        written = json.loads(receipt.read_text(encoding="utf-8"))
        is_finished = written == run | {"rows": rows.digest.hexdigest()}
    if not is_finished:
        raise FileExistsError(f"{output} exists. Use another name, or pass --overwrite.")


def find_format(output: Path, output_format: OutputFormat | None) -> OutputFormat:
    """Return the given output format, or derive it from the suffix of the output.

    Raises:
        ValueError: If the output has no name, or the format is unknown.
    """
    if not output.name:
        raise ValueError(f"Expected the name of a new file or folder as output, got {output}.")
    found = output_format or SUFFIXES.get(output.suffix)
    if found not in WRITERS:
        raise ValueError(
            f"Unknown format of {str(output)!r}: expected a name that ends in one of "
            f"{', '.join(SUFFIXES)}, or a format, one of {', '.join(WRITERS)}."
        )
    return found


def _write_output(kind: OutputFormat, parts: list[Path], path: Path) -> None:
    """Write the output from its parts; if this fails, leave no part of it on a full disk."""
    _delete(path)  # files of a killed run
    try:
        WRITERS[kind](parts, path)
        for file in path.iterdir() if path.is_dir() else [path]:
            with file.open("r+b") as stream:
                os.fsync(stream.fileno())  # a network disk reports some errors only here
    except BaseException:
        _delete(path)
        raise


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

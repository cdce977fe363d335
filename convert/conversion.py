"""From a checkpoint in one format to another: find the format, check, write, move into place."""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from math import prod
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from convert.download import Download
from convert.fetch import Fetched, fetch_sources
from convert.formats import allennlp, bilm_hdf5, hf_folder, many_langs, nlpl, tensorflow
from convert.layout import (
    NUMBER_SIZES,
    Checkpoint,
    ConversionError,
    FloatArray,
    Format,
    LazyTensor,
    Provenance,
    Sources,
    WriteSettings,
)
from convert.publish import check_name, push_folder
from convert.source import find_checkpoint
from convert.target import (
    check_space,
    check_target,
    make_new,
    make_work_folder,
    move_into_place,
    remove_journal,
)
from convert.verification import verify_model
from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoModel

# The first that recognises a source opens it.
FORMATS = tuple(
    module.FORMAT for module in (hf_folder, bilm_hdf5, tensorflow, nlpl, many_langs, allennlp)
)


@dataclass(frozen=True)
class Conversion:
    """What `convert_checkpoint` did, or would do.

    Attributes:
        source: Name of the source.
        target: Path of the target.
        format: Name of the source's format.
        files: Files that were read.
        config: The biLM's configuration.
        num_parameters: Numbers in its tensors, the rows for "no token" included.
        num_bytes: Bytes of these in the target.
        left_out: What the source holds and the target does not, a line each.
        downloads: What was downloaded.
        difference: Greatest difference from the stored activations; None = not verified.
        url: Address on the Hub; None = not pushed.
    """

    source: str
    target: Path
    format: str
    files: tuple[Path, ...]
    config: ElmoConfig
    num_parameters: int
    num_bytes: int
    left_out: tuple[str, ...]
    downloads: tuple[Download, ...] = ()
    difference: float | None = None
    url: str | None = None


def convert_checkpoint(
    source: Path | str,
    target: Path | str,
    *,
    to: str = "huggingface",
    options: Path | str | None = None,
    vocabulary: Path | str | None = None,
    softmax: Path | str | None = None,
    token_embeddings: Path | str | None = None,
    dtype: str = "float32",
    weights_license: str | None = None,
    verify: Path | str | None = None,
    sentences: Path | str | None = None,
    force: bool = False,
    dry_run: bool = False,
    push: str | None = None,
    progress: bool = False,
) -> Conversion:
    """Convert a biLM from one format to another.

    The target appears whole or not at all: it is written to a hidden folder beside it, then moved.
    After a run that was killed, the same one finishes what it began.

    Args:
        source: File or folder of the checkpoint, archive with it, name of a published model,
            address, or name on the Hub.
        target: File or folder to write.
        to: Name of the target's format, of `FORMATS`.
        options: Options of a bilm-tf model; None = found beside the source.
        vocabulary: A word a line; None = found beside the source, where one is needed.
        softmax: Released softmax of a bilm-tf model, in HDF5; None = none.
        token_embeddings: File of bilm-tf's `dump_token_embeddings`, in place of the characters.
        dtype: Type of the numbers in the target: "float32", "float16" or "bfloat16".
        weights_license: Licence of the weights, for the model card; None = not known.
        verify: Activations of the original program, see `verify_model`; None = do not verify.
        sentences: The text of these activations; None = found with them.
        force: Replace the target if it is there.
        dry_run: Find out and check everything but the numbers, and write nothing.
        push: Name on the Hub, "organisation/name", to upload the model to; None = do not.
        progress: Show a progress bar.

    Returns:
        What was done.

    Raises:
        ConversionError: If the source is broken or not a biLM, the target's format cannot hold it,
            the target is there already, the model does not compute the stored activations, or the
            Hub refuses it.
        OSError: If a file cannot be read or written.
    """
    named = {"checkpoint": source, "options": options, "vocabulary": vocabulary}
    named |= {"softmax": softmax, "token_embeddings": token_embeddings}
    names = {name: str(value) for name, value in named.items() if value is not None}
    target, writer = Path(target), find_writer(to)
    if (verify is not None or push is not None) and writer is not hf_folder.FORMAT:
        raise ConversionError("Only a model in the format huggingface can be verified or pushed.")
    if push is not None:
        check_name(push)
    _check_request(Path(source), target, dtype)
    _check_verification(verify, sentences)
    check_target(target, force=force)
    with tempfile.TemporaryDirectory() if dry_run else make_work_folder(target) as folder:
        fetched = fetch_sources(names, find_reader, Path(folder), progress=progress)
        with _open_checked(fetched, Path(folder)) as (reader, checkpoint):
            conversion = _describe(reader, checkpoint, fetched, target, dtype)
            writer.check(checkpoint, target, dtype)
            check_space(target, conversion.num_bytes)
            if dry_run:
                return conversion
            settings = _make_settings(conversion, fetched, dtype, weights_license)
            new, count = make_new(Path(folder), target), conversion.num_parameters
            with tqdm(total=count, unit_scale=True, disable=not progress) as bar:
                writer.write(_check_while_reading(checkpoint, bar), new, settings)
        if verify is not None:
            text = None if sentences is None else Path(sentences)
            difference = verify_model(new, Path(verify), text, dtype=dtype)
            conversion = replace(conversion, difference=difference)
        move_into_place(new, target, force=force)
    remove_journal(target)
    return conversion if push is None else replace(conversion, url=push_folder(target, push))


def _check_request(source: Path, target: Path, dtype: str) -> None:
    if dtype not in NUMBER_SIZES:
        raise ConversionError(f"Expected a dtype of {', '.join(NUMBER_SIZES)}, got {dtype}.")
    place = source.resolve()
    if source.exists() and target.resolve() in (place, *place.parents):
        raise ConversionError(f"{target}: is the source or holds it; expected another target.")


def _check_verification(verify: str | Path | None, sentences: str | Path | None) -> None:
    """Look at files that are read when all else is done."""
    if sentences is not None and verify is None:
        raise ConversionError("Expected --verify too: --sentences are those of its activations.")
    for path in (verify, sentences):
        if path is not None and not Path(path).is_file():
            raise ConversionError(f"{path}: expected a file, found none.")


def _describe(
    reader: Format, checkpoint: Checkpoint, fetched: Fetched, target: Path, dtype: str
) -> Conversion:
    num_parameters = sum(prod(tensor.shape) for tensor in checkpoint.tensors.values())
    return Conversion(
        source=fetched.name,
        target=target,
        format=reader.name,
        files=checkpoint.files,
        config=checkpoint.config,
        num_parameters=num_parameters,
        num_bytes=num_parameters * NUMBER_SIZES[dtype],
        left_out=checkpoint.left_out,
        downloads=tuple(fetched.downloads.values()),
    )


def _make_settings(
    conversion: Conversion, fetched: Fetched, dtype: str, weights_license: str | None
) -> WriteSettings:
    """Note what the checkpoint was made from, and under which licence it is."""
    known = {path.resolve(): item.sha256 for path, item in fetched.downloads.items()}
    files = []
    for path in conversion.files:
        checksum = known.get(path.resolve())
        if checksum is None:
            with path.open("rb") as file:
                checksum = hashlib.file_digest(file, "sha256").hexdigest()
        files.append((path.name, checksum))
    if weights_license is None and fetched.published is not None:
        weights_license = fetched.published.hub_license
    provenance = Provenance(fetched.name, conversion.format, tuple(files), version("spacy-elmo"))
    return WriteSettings(dtype, weights_license, provenance)


def find_reader(path: Path) -> Format | None:
    """Find the format of a checkpoint; None if it is of none that is known."""
    readers = (candidate for candidate in FORMATS if candidate.is_readable)
    return next((reader for reader in readers if reader.recognises(path)), None)


def find_writer(name: str) -> Format:
    """Find a format to write by its name.

    Raises:
        ConversionError: If there is none.
    """
    writers = {candidate.name: candidate for candidate in FORMATS if candidate.is_writable}
    if name not in writers:
        raise ConversionError(f"Expected a format of {', '.join(writers)} to write, got {name}.")
    return writers[name]


@contextmanager
def _open_checked(fetched: Fetched, folder: Path) -> Iterator[tuple[Format, Checkpoint]]:
    """Find and open a checkpoint whose tensors are those of the biLM that it describes."""
    with ExitStack() as stack:
        try:
            found = find_checkpoint(fetched.sources.checkpoint, find_reader, folder)
            _check_companions(found.reader, fetched.sources)
            sources = replace(fetched.sources, checkpoint=found.path)
            checkpoint = stack.enter_context(found.reader.open(sources))
            _check_shapes(checkpoint, fetched.name)
        except ConversionError as error:
            if not fetched.downloads:
                raise
            places = ", ".join(str(path) for path in fetched.downloads)
            raise ConversionError(
                f"{error}\nDownloaded were: {places}. If one is broken, delete it and try again."
            ) from error
        published = fetched.published
        yield (
            found.reader,
            replace(
                checkpoint,
                files=(*found.archives, *checkpoint.files),
                origin=(*checkpoint.origin, *fetched.describe()),
                languages=checkpoint.languages or (published.languages if published else ()),
            ),
        )


def _check_companions(reader: Format, sources: Sources) -> None:
    for name, path in vars(sources).items():
        if path is not None and name not in ("checkpoint", *reader.companions):
            option = "--" + name.replace("_", "-")
            raise ConversionError(f"{reader.name}: expected no {option}, got {path}.")


def _check_shapes(checkpoint: Checkpoint, source: str) -> None:
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    expected = _expected_shapes(checkpoint, source)
    for name in sorted(shapes.keys() | expected.keys()):
        if shapes.get(name) != expected.get(name):
            raise ConversionError(
                f"{source}: expected a tensor {name} of shape {expected.get(name, 'none')}, found "
                f"{shapes.get(name, 'none')}."
            )


def _expected_shapes(checkpoint: Checkpoint, source: str) -> dict[str, tuple[int, ...]]:
    has_softmax = any(name.startswith("softmax.") for name in checkpoint.tensors)
    try:
        with torch.device("meta"):
            model = (ElmoForPreTraining if has_softmax else ElmoModel)(checkpoint.config)
    except (RuntimeError, TypeError) as error:  # of sizes beyond any tensor's
        raise ConversionError(
            f"{source}: expected a biLM of a size that can be: {error}."
        ) from error
    return {
        name.removeprefix("elmo."): tuple(tensor.shape)
        for name, tensor in model.state_dict().items()
    }


def _check_while_reading(checkpoint: Checkpoint, bar: "tqdm[None]") -> Checkpoint:
    """Check all numbers as they are read, and show them on the bar."""

    def check(tensor: LazyTensor) -> LazyTensor:
        def read_rows(start: int, stop: int) -> FloatArray:
            rows = tensor.read_rows(start, stop)
            if not np.isfinite(rows).all():
                raise ConversionError(
                    f"{tensor.source}: expected finite numbers, got NaN or infinity."
                )
            bar.update(rows.size)
            return rows

        return replace(tensor, read_rows=read_rows)

    tensors = {name: check(tensor) for name, tensor in checkpoint.tensors.items()}
    return replace(checkpoint, tensors=tensors)

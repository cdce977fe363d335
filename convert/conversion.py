"""Convert a checkpoint: detect the format, check, write, and move the target into place."""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
from tqdm import tqdm

from convert.download import Download
from convert.fetch import Fetched, fetch_sources
from convert.format_detection import find_checkpoint, find_writer
from convert.formats import hf_folder
from convert.layout import (
    NUMBER_SIZES,
    Checkpoint,
    ConversionError,
    FloatArray,
    Format,
    LazyTensor,
    Sources,
    WriteSettings,
)
from convert.publish import check_name, push_folder
from convert.target import NEW, check_space, check_target, make_work_folder, move_into_place
from convert.verification import verify_model
from hf_elmo import ElmoConfig
from hf_elmo.files.output_file import find_place
from hf_elmo.modeling_elmo import list_shapes


@dataclass(frozen=True)
class Conversion:
    """Result of `convert_checkpoint`; in a dry run, a description of the planned conversion.

    Attributes:
        source: Name of the source.
        target: Path of the target.
        format: Name of the source's format.
        files: Files that were read.
        config: Configuration of the biLM.
        num_parameters: Number of parameters, including padding rows.
        num_bytes: Size of the parameters in the target.
        left_out: Parts of the source that the target omits, one line each.
        downloads: Downloaded files.
        difference: Largest difference from the stored activations; None = not verified.
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


class Companions(TypedDict, total=False):
    """Source files besides the checkpoint: paths or addresses.

    Attributes:
        options: Options file; None = search next to the source.
        vocabulary: File with one word per line; None = search next to the source if needed.
        softmax: Softmax file (HDF5), or the name of a published softmax; None = that of the
            checkpoint, or the converter's own file beside it, if any.
        token_embeddings: File of `dump_token_embeddings`; it replaces the character encoder.
    """

    options: Path | str | None
    vocabulary: Path | str | None
    softmax: Path | str | None
    token_embeddings: Path | str | None


def convert_checkpoint(
    source: Path | str,
    target: Path | str,
    *,
    to: str = "huggingface",
    dtype: str = "float32",
    weights_license: str | None = None,
    verify: Path | str | None = None,
    sentences: Path | str | None = None,
    force: bool = False,
    dry_run: bool = False,
    push: str | None = None,
    progress: bool = False,
    **companions: Unpack[Companions],
) -> Conversion:
    """Convert a biLM from one format to another.

    The target is written in a hidden folder next to its final path, then moved to this path.
    After a run was killed, run the same conversion again to complete it.

    Args:
        source: File, folder, archive, web address, name of a published model, or Hub name.
        target: File or folder to write. A link to a folder is kept for the format "huggingface":
            the folder is replaced. Links to files are replaced, because files beside them belong
            to the target.
        to: Name of the target's format, one of `FORMATS`.
        dtype: Data type in the target: "float32", "float16" or "bfloat16".
        weights_license: Licence of the weights, for the model card; None = unknown.
        verify: File of the original implementation's activations, see `verify_model`; None = skip.
        sentences: Text file with the sentences of `verify`; None = see `verify_model`.
        force: Replace an existing target and its companion files.
        dry_run: Check everything except the values of the tensors, and write no target. Sources on
            the web are still downloaded to the cache.
        push: Repository on the Hub for the upload, "organisation/name"; None = no upload.
        progress: Show a progress bar.
        **companions: Other source files, see `Companions`.

    Returns:
        A description of the conversion.

    Raises:
        ConversionError: If the source is broken or not a biLM, the target exists, or its format
            does not support the biLM. Also if the verification fails or the Hub refuses the model.
        OSError: If a file cannot be read or written.
    """
    others = {name: str(path) for name, path in companions.items() if path is not None}
    names = {"checkpoint": str(source), **others}
    writer, target = find_writer(to), Path(target)
    if to == hf_folder.FORMAT.name:  # other formats have files beside the target
        target = find_place(target)
    if (verify is not None or push is not None) and to != hf_folder.FORMAT.name:
        raise ConversionError("Expected --to huggingface with --verify or --push.")
    if weights_license is not None and to != hf_folder.FORMAT.name:
        raise ConversionError("Expected --to huggingface with --license, for the model card.")
    if push is not None:
        check_name(push)
    if sentences is not None and verify is None:
        raise ConversionError("Expected --verify together with --sentences.")
    for path in (verify, sentences):  # read only at the end
        if path is not None and not Path(path).is_file():
            raise ConversionError(f"{path}: expected a file, found none.")
    sources = [Path(path) for path in (*names.values(), verify, sentences) if path is not None]
    _check_request(sources, target, dtype)
    with tempfile.TemporaryDirectory() if dry_run else make_work_folder(target) as folder:
        check_target(target, force=force)
        fetched = fetch_sources(names, Path(folder), progress=progress)
        with _open_checked(fetched, Path(folder)) as (reader, checkpoint):
            conversion = _describe(reader, checkpoint, fetched, target, dtype)
            sources += conversion.files
            _check_request(sources, target, dtype)
            writer.check(checkpoint, target, dtype)
            check_space(target, conversion.num_bytes)
            if dry_run:
                return conversion
            settings = _make_settings(conversion, fetched, dtype, weights_license)
            new, count = Path(folder) / NEW / target.name, conversion.num_parameters
            with tqdm(total=count, unit_scale=True, disable=not progress) as bar:
                writer.write(_check_while_reading(checkpoint, bar), new, settings)
        if verify is not None:
            text = None if sentences is None else Path(sentences)
            difference = verify_model(new, Path(verify), text, dtype=dtype)
            conversion = replace(conversion, difference=difference)
        move_into_place(new, target, sources, force=force)
    return conversion if push is None else replace(conversion, url=push_folder(target, push))


def _check_request(sources: Iterable[Path], target: Path, dtype: str) -> None:
    if dtype not in NUMBER_SIZES:
        raise ConversionError(f"Expected a dtype of {', '.join(NUMBER_SIZES)}, got {dtype}.")
    here = Path.cwd()
    if target.resolve() in (here, *here.parents):  # moving it would change all relative paths
        raise ConversionError(
            f"{target}: expected a target that does not contain the current folder."
        )
    for place in (source.resolve() for source in sources if source.exists()):
        if target.resolve() in (place, *place.parents):
            raise ConversionError(
                f"{target}: expected a target that is not the source and does not contain it, but "
                f"{place} is read by this command."
            )


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
    """Make the writer's settings, with source files and licence for the model card."""
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
    return WriteSettings(dtype, weights_license, fetched.name, conversion.format, tuple(files))


@contextmanager
def _open_checked(fetched: Fetched, folder: Path) -> Iterator[tuple[Format, Checkpoint]]:
    """Find and open a checkpoint, and check the shapes of its tensors."""
    with ExitStack() as stack:
        try:
            found = find_checkpoint(fetched.sources.checkpoint, folder)
            _check_companions(found.reader, fetched.sources)
            sources = replace(fetched.sources, checkpoint=found.path)
            checkpoint = stack.enter_context(found.reader.open(sources))
            _check_shapes(checkpoint, fetched.name)
        except ConversionError as error:
            if not fetched.downloads:
                raise
            places = ", ".join(str(path) for path in fetched.downloads)
            raise ConversionError(
                f"{error}\nThe files were downloaded: {places}. If one is broken, delete it and "
                "try again."
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
        option = "--" + name.replace("_", "-")
        if path is not None and name not in ("checkpoint", *reader.companions):
            raise ConversionError(f"{reader.name}: expected no {option}, got {path}.")
        if path is not None and name != "checkpoint" and not path.is_file():
            raise ConversionError(f"{option}: expected a file, found none at {path}.")


def _check_shapes(checkpoint: Checkpoint, source: str) -> None:
    found = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    config, expected = checkpoint.config, list_shapes(checkpoint.config)
    if any(name.startswith("softmax.") for name in found):
        sizes = (config.vocab_size, config.projection_size)
        expected |= {"softmax.weight": sizes, "softmax.bias": sizes[:1]}
    for name, shape in expected.items():
        if found.get(name) != shape:
            raise ConversionError(
                f"{source}: expected a tensor {name} of shape {shape}, found "
                f"{found.get(name, 'none')}."
            )
        del found[name]
    if found:
        raise ConversionError(f"{source}: expected no tensors {', '.join(found)}.")


def _check_while_reading(checkpoint: Checkpoint, bar: "tqdm[None]") -> Checkpoint:
    """Wrap a checkpoint: each read checks that values are finite, and updates the progress bar."""

    def check(tensor: LazyTensor) -> LazyTensor:
        def read_rows(start: int, stop: int) -> FloatArray:
            rows = tensor.read_rows(start, stop)
            if not np.isfinite(rows).all():
                raise ConversionError(
                    f"{tensor.source}: expected finite values, got NaN or infinity."
                )
            bar.update(rows.size)
            return rows

        return replace(tensor, read_rows=read_rows)

    tensors = {name: check(tensor) for name, tensor in checkpoint.tensors.items()}
    return replace(checkpoint, tensors=tensors)

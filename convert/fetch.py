"""Resolve paths, web addresses, published models and Hub names to local files."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from convert.catalogue import SOFTMAX, Published, find_published, suggest_published
from convert.download import Download, download, is_address, show_address
from convert.format_detection import find_reader
from convert.layout import ConversionError, Sources
from convert.unpack import link
from hf_elmo.model_card import quote

HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w.-]+))?", re.ASCII)  # name@revision
PART_NAME = re.compile(r".*\.part-?\d+")


@dataclass(frozen=True)
class Fetched:
    """Local files of a source.

    Attributes:
        name: Name of the checkpoint: file, folder, published model, Hub name, or address.
        sources: Paths of the files.
        published: Catalogue entry of the checkpoint; None = not a published model.
        downloads: Downloaded files by path.
    """

    name: str
    sources: Sources
    published: Published | None
    downloads: Mapping[Path, Download]

    def describe(self) -> Iterator[str]:
        """Yield sentences on the origin of the files, for the model card."""
        for item in self.downloads.values():
            yield f"{quote(item.name)} was downloaded from {quote(item.address)}."
        if self.published is not None:
            yield from self.published.describe()


def fetch_sources(names: Mapping[str, str], folder: Path, *, progress: bool) -> Fetched:
    """Download all files that the user does not give by path.

    Args:
        names: Path or address by field name of `Sources`. The checkpoint can also be a Hub name;
            checkpoint and softmax can also be names from the catalogue.
        folder: Folder in which the files of one checkpoint are collected.
        progress: Show progress bars.

    Raises:
        ConversionError: If a name is unknown, or a download fails.
    """
    source, softmax = names["checkpoint"], names.get("softmax", "")
    downloads: dict[Path, Download] = {}

    def get(addresses: Sequence[str], **known: Any) -> Path:
        path, item = download(addresses, progress=progress, **known)
        downloads[path] = item
        return path

    is_here = os.path.lexists(source) or find_reader(Path(source)) is not None
    published = None if is_here else find_published(source)
    paths = {name: get([item]) if is_address(item) else Path(item) for name, item in names.items()}
    if published is not None and published.format == SOFTMAX:
        raise ConversionError(
            f"{source}: expected a model, found a softmax. Pass it with --softmax."
        )
    if published is not None:
        paths["checkpoint"] = _bring_together(_get_files(published, get), folder / "downloaded")
        if published.options and "options" not in paths:
            paths["options"] = get(published.options)
        needs_vocabulary = published.format == "tensorflow" or softmax  # a softmax needs it
        if published.vocabulary and needs_vocabulary and "vocabulary" not in paths:
            paths["vocabulary"] = get(published.vocabulary)
    elif not is_here and not is_address(source):
        paths["checkpoint"] = _download_from_hub(source)
    layer = find_published(softmax) if softmax and not os.path.lexists(softmax) else None
    if layer is not None and layer.format != SOFTMAX:
        raise ConversionError(f"{softmax}: expected the softmax of a model, found a model.")
    if layer is not None:
        (paths["softmax"],) = _get_files(layer, get)
        paths["vocabulary"] = paths.get("vocabulary") or get(layer.vocabulary)
    name = Path(source).name if is_here else show_address(source)
    return Fetched(name, Sources(**paths), published, downloads)


def _get_files(model: Published, get: Callable[..., Path]) -> list[Path]:
    if len(model.files) > 1:
        return [get(addresses) for addresses in model.files]
    return [get(model.files[0], size=model.bytes, sha256=model.sha256)]


def _bring_together(paths: list[Path], folder: Path) -> Path:
    """Collect the files of a checkpoint in one folder; join the parts of an archive."""
    if len(paths) == 1:
        return paths[0]
    folder.mkdir()
    if not all(PART_NAME.fullmatch(path.name) for path in paths):
        for path in paths:
            link(path, folder / path.name)
        return folder
    whole = folder / paths[0].stem
    with whole.open("xb") as file:
        for path in paths:
            with path.open("rb") as part:
                shutil.copyfileobj(part, file)
    return whole


def _download_from_hub(source: str) -> Path:
    match = HUB_NAME.fullmatch(source)
    if match is None:
        raise ConversionError(f"{source}: expected a checkpoint, found no such file or folder.")
    try:
        return Path(huggingface_hub.snapshot_download(match[1], revision=match[2]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise ConversionError(
            f"{source}: expected a checkpoint, found no file, folder, published model or Hub "
            f"repository of this name: {reason[0]} "
            f"{suggest_published(source)}"
        ) from error

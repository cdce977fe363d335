"""Resolve paths, web addresses, published models and Hub names to local files; unpack archives."""

import bz2
import gzip
import hashlib
import lzma
import re
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub
import requests
from huggingface_hub import cached_assets_path, constants
from tqdm import tqdm
from urllib3.exceptions import HTTPError

from convert.catalogue import SOFTMAX, Published, find_published, suggest_published
from convert.checkpoint import ConversionError, Sources

TIMEOUT = (20, 60)  # maximum seconds until a connection, and until the next bytes
PAGE = re.compile(rb"\s*(<!--.*?-->\s*)?<(!doctype\s+html|html|head)\b", re.IGNORECASE | re.DOTALL)
PART_NAME = re.compile(r".*\.part-?\d+")
OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
BROKEN = (EOFError, OSError, RuntimeError, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)


def fetch(
    source: str,
    folder: Path,
    *,
    options: str | None = None,
    vocabulary: str | None = None,
    softmax: str | None = None,
    revision: str | None = None,
    progress: bool = False,
) -> tuple[Sources, Published | None]:
    """Find or download the files of a source, and its entry in the catalogue.

    Each of `options`, `vocabulary` and `softmax` is a path or an address, or None for what the
    catalogue names. `folder` collects the files of a checkpoint that has several.
    """

    def get(addresses: Sequence[str]) -> Path:
        return download(addresses, progress=progress)

    def find(name: str | None, published: Sequence[str]) -> Path | None:
        if name is None:
            return get(published) if published else None
        return get([name]) if is_address(name) else Path(name)

    is_here = Path(source).exists() or Path(f"{source}.index").exists()  # a TensorFlow prefix
    model = None if is_here else find_published(source)
    if model is not None and model.format == SOFTMAX:
        raise ConversionError(f"{source}: is a softmax. Pass it with --softmax.")
    layer = find_published(softmax) if softmax and not Path(softmax).exists() else None
    if is_here:
        checkpoint = Path(source)
    elif model is not None:
        checkpoint = _bring_together([get(addresses) for addresses in model.files], folder)
    elif is_address(source):
        checkpoint = get([source])
    else:
        checkpoint = _download_from_hub(source, revision)
    words: Sequence[str] = ()
    if layer is not None:
        words = layer.vocabulary
    elif model is not None and (model.format == "tensorflow" or softmax):  # those have a softmax
        words = model.vocabulary
    sources = Sources(
        checkpoint=checkpoint,
        options=find(options, model.options if model else ()),
        vocabulary=find(vocabulary, words),
        softmax=get(layer.files[0]) if layer else find(softmax, ()),
    )
    return sources, model


def _bring_together(paths: list[Path], folder: Path) -> Path:
    """Collect the files of a checkpoint in one folder; join the parts of an archive."""
    if len(paths) == 1:
        return paths[0]
    folder = folder / "downloaded"
    folder.mkdir()
    for path in paths:
        name = path.stem if PART_NAME.fullmatch(path.name) else path.name
        with path.open("rb") as part, (folder / name).open("ab") as file:
            shutil.copyfileobj(part, file)
    return folder


def _download_from_hub(source: str, revision: str | None) -> Path:
    try:
        return Path(huggingface_hub.snapshot_download(source, revision=revision))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConversionError(
            f"{source}: found no file, folder, published model or Hub repository of this name: "
            f"{reason} {suggest_published(source)}"
        ) from error


# --- Downloads ---


def is_address(source: str) -> bool:
    """Return whether a source is a web address."""
    return source.startswith(("http://", "https://"))


def download(addresses: Sequence[str], *, progress: bool = False) -> Path:
    """Download a file from the first address that answers to the Hub's cache, or find it there."""
    key = hashlib.sha256(addresses[0].encode()).hexdigest()[:24]
    cache = cached_assets_path(
        "elmo-convert", "downloads", "files", assets_dir=constants.HF_ASSETS_CACHE
    )
    folder = Path(cache, key)
    if folder.is_dir():
        return next(folder.iterdir())
    if constants.HF_HUB_OFFLINE:
        raise ConversionError(f"{addresses[0]}: not in the cache, and HF_HUB_OFFLINE is set.")
    problems = []
    for address in addresses:
        try:
            with tempfile.TemporaryDirectory(dir=cache) as temporary:
                (new := Path(temporary, "new")).mkdir()
                name = _receive(address, new, progress).name
                new.rename(folder)
                return folder / name
        except (requests.RequestException, HTTPError, ConversionError) as error:
            problems.append(f"{address}: {error}")
    raise ConversionError("; ".join(problems))


def _receive(address: str, folder: Path, progress: bool) -> Path:
    with requests.get(address, stream=True, timeout=TIMEOUT) as response:
        response.raise_for_status()
        header = Message()
        header["Content-Disposition"] = response.headers.get("Content-Disposition", "")
        names = [header.get_filename(""), urlsplit(address).path, urlsplit(response.url).path]
        names = [Path(unquote(name).replace("\\", "/")).name for name in names]
        path = folder / next(filter(None, names), "file")
        size = response.raw.length_remaining
        with (
            path.open("wb") as file,
            tqdm(total=size, unit="B", unit_scale=True, disable=not progress) as bar,
        ):
            # Raw bytes: a server may declare a .gz file as compressed content.
            for block in response.raw.stream(1 << 20, decode_content=False):
                if file.tell() == 0 and PAGE.match(block):
                    raise ConversionError(
                        "this is a web page, not a model. Open the address in a browser, save the "
                        "file, and convert that."
                    )
                bar.update(file.write(block))
    return path


# --- Archives ---


def is_archive(path: Path) -> bool:
    """Recognise an archive or a compressed file."""
    return path.is_file() and (
        tarfile.is_tarfile(path) or _read_start(path).startswith((b"PK\x03\x04", *OPENERS))
    )


def _read_start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(8)


def unpack(path: Path, folder: Path) -> None:
    """Unpack an archive, or a compressed file, into a new folder; nothing is written outside."""
    folder.mkdir()
    try:
        if tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                archive.extractall(folder, filter="data")
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)
        else:
            opener = next(OPENERS[x] for x in OPENERS if _read_start(path).startswith(x))
            with opener(path) as packed, (folder / path.stem).open("xb") as file:
                shutil.copyfileobj(packed, file)
            for other in (*path.parent.glob("*.json"), *path.parent.glob("*.txt")):
                shutil.copy(other, folder)  # the options of a file that is compressed alone
    except (*BROKEN, StopIteration) as error:
        raise ConversionError(f"{path}: expected a complete archive: {error}.") from error

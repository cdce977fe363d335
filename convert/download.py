"""Download files of any size from servers of any quality, once: resumed, bounded, checked."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests
from filelock import FileLock
from huggingface_hub import cached_assets_path, constants
from requests.adapters import HTTPAdapter
from tqdm import tqdm
from urllib3.util import Retry

from convert.layout import ConversionError

MAX_SIZE = 32 << 30  # bytes; a trainer's checkpoint with its softmax and slots has some 5
BLOCK_SIZE = 1 << 20
TIMEOUT = (20, 60)  # seconds without a connection, without a byte
NUM_RETRIES, BACKOFF = 3, 1.0  # of servers that are busy or away; seconds, doubled each time
BUSY = (429, 500, 502, 503, 504)
PAGE = re.compile(rb"\s*(<!--.*?-->\s*)?<(!doctype\s+html|html|head)\b", re.IGNORECASE | re.DOTALL)
TITLE = re.compile(rb"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)
PARTIAL, RECORD = "partial", "download.json"


@dataclass(frozen=True)
class Download:
    """A file that was downloaded, now or before.

    Attributes:
        address: Where from.
        name: Its name.
        bytes: Its size.
        sha256: Its checksum.
    """

    address: str
    name: str
    bytes: int
    sha256: str


class _DownloadError(ConversionError):
    """What is wrong with one address; another one of the same file may do."""


def is_address(source: str) -> bool:
    """Tell an address of the web from a path."""
    return source.startswith(("http://", "https://"))


def download(
    addresses: Sequence[str],
    *,
    size: int | None = None,
    sha256: str = "",
    progress: bool = False,
) -> tuple[Path, Download]:
    """Download a file to the Hub's cache, or find it there.

    What was interrupted goes on where it stopped, if the server says that the file is the same.

    Args:
        addresses: Where it lies; a later one is tried if those before fail.
        size: Its bytes; None = not known.
        sha256: Its checksum; empty = not known.
        progress: Show a progress bar.

    Returns:
        Its path, and what it is.

    Raises:
        ConversionError: If no address gives this file, or the Hub's libraries are set offline.
        OSError: If it cannot be written.
    """
    key = hashlib.sha256(addresses[0].encode()).hexdigest()[:24]
    cache = constants.HF_ASSETS_CACHE
    folder = cached_assets_path("elmo-convert", "downloads", key, assets_dir=cache)
    with FileLock(folder / "lock"):
        if (folder / RECORD).is_file():
            record = Download(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
            path = folder / "file" / record.name
            if path.is_file() and path.stat().st_size == record.bytes:
                return path, record
        if constants.HF_HUB_OFFLINE:
            raise ConversionError(
                f"{addresses[0]}: is not in the cache, and HF_HUB_OFFLINE is set."
            )
        problems = []
        for address in addresses:
            try:
                return _download_from(address, folder, size, sha256, progress)
            except _DownloadError as error:
                problems.append(f"{address}: {error}")
        raise ConversionError("\n".join(problems))


def _download_from(
    address: str, folder: Path, size: int | None, sha256: str, progress: bool
) -> tuple[Path, Download]:
    partial = folder / PARTIAL
    name = _fetch(address, partial, size, progress)
    with partial.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    record = Download(address, name, partial.stat().st_size, actual)
    if size not in (None, record.bytes) or sha256 not in ("", actual):
        partial.unlink()
        raise _DownloadError(
            f"expected {size or 'any number of'} bytes with the SHA-256 {sha256 or '(any)'}, "
            f"got {record.bytes} with {actual}."
        )
    (folder / "file").mkdir(exist_ok=True)
    path = folder / "file" / name
    partial.replace(path)
    draft = folder / "draft"
    draft.write_text(json.dumps(asdict(record)), encoding="utf-8")
    draft.replace(folder / RECORD)
    return path, record


def _fetch(address: str, partial: Path, size: int | None, progress: bool) -> str:
    """Fetch what is missing of a file, as long as each try brings it further; return its name."""
    with requests.Session() as session:
        retry = Retry(
            NUM_RETRIES, backoff_factor=BACKOFF, status_forcelist=BUSY, raise_on_status=False
        )
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(max_retries=retry))
        session.headers.update({"User-Agent": "elmo-convert", "Accept-Encoding": "identity"})
        before = -1
        while True:
            try:
                return _fetch_rest(session, address, partial, size, progress)
            except requests.RequestException as error:
                now = partial.stat().st_size if partial.exists() else 0
                if now <= before or isinstance(error, requests.HTTPError):
                    raise _DownloadError(f"{_explain(error)} ({now:,} bytes are here).") from error
                before = now


def _explain(error: requests.RequestException) -> str:
    if error.response is not None:
        return f"the server answers {error.response.status_code} {error.response.reason}"
    return f"no whole answer: {error}"


def _fetch_rest(
    session: requests.Session, address: str, partial: Path, size: int | None, progress: bool
) -> str:
    """Ask for what is missing of a file and append it."""
    tag = partial.with_name("tag")
    start = partial.stat().st_size if partial.exists() and tag.exists() else 0
    headers = {"Range": f"bytes={start}-", "If-Range": tag.read_text()} if start else {}
    with session.get(address, headers=headers, stream=True, timeout=TIMEOUT) as response:
        name = _name_file(response, address)
        part = response.headers.get("Content-Range", "")
        if part == f"bytes */{start}":
            return name  # all of it is here
        is_unasked = bool(part) and not part.startswith(f"bytes {start}-")
        if is_unasked or response.status_code == requests.codes.requested_range_not_satisfiable:
            if not start:
                raise _DownloadError(f"expected the file, got a part of it: {part or 'none'}.")
            partial.unlink()  # begin anew
            return _fetch_rest(session, address, partial, size, progress)
        response.raise_for_status()
        start = start if part else 0
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        bound = MAX_SIZE if size is None else size
        if total is not None and total > bound:
            raise _DownloadError(f"expected at most {bound:,} bytes, the server has {total:,}.")
        _note_version(tag, response)
        with (
            partial.open("r+b" if start else "wb") as file,
            tqdm(
                total=total,
                initial=start,
                unit="B",
                unit_scale=True,
                desc=name[-40:],
                disable=not progress,
            ) as bar,
        ):
            file.seek(start)
            for block in response.iter_content(BLOCK_SIZE):
                if file.tell() == 0 and PAGE.match(block):
                    raise _page(block)
                if file.tell() + len(block) > bound:
                    raise _DownloadError(f"expected at most {bound:,} bytes, got more.")
                file.write(block)
                bar.update(len(block))
    return name


def _note_version(tag: Path, response: requests.Response) -> None:
    """Note by what the server tells this version of the file from others; without, begin anew."""
    version = response.headers.get("ETag", response.headers.get("Last-Modified", ""))
    if version and not version.startswith("W/"):
        tag.write_text(version)
    else:
        tag.unlink(missing_ok=True)


def _page(block: bytes) -> _DownloadError:
    found = TITLE.search(block)
    title = " ".join(found[1].decode(errors="replace").split())[:80] if found else "no title"
    return _DownloadError(
        f"expected a file, got a web page ({title!r}), as Google Drive, Dropbox and logins send "
        "them. Open the address in a browser, save the file, and convert that."
    )


def _name_file(response: requests.Response, address: str) -> str:
    """Return the name that the server gives a file, or the last one of its address."""
    disposition = response.headers.get("Content-Disposition", "")
    match = re.search(r"filename\*=(?:UTF-8'')?([^;]+)|filename=\"?([^\";]+)", disposition)
    given = [match[1] or match[2]] if match else []
    paths = [*given, urlsplit(address).path, urlsplit(response.url).path]
    names = [unquote(path).replace("\\", "/").rstrip("/").rpartition("/")[2] for path in paths]
    names = [name.strip(". \0")[-200:] for name in names]
    return next((name for name in names if "." in name), next(filter(None, names), "file"))

"""Download files once to a cache: resumable, with a size limit and checksums."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

import requests
from filelock import FileLock
from huggingface_hub import cached_assets_path, constants
from requests.adapters import HTTPAdapter
from tqdm import tqdm
from urllib3 import BaseHTTPResponse
from urllib3.util import Retry

from convert.layout import ConversionError
from convert.unpack import ALWAYS_ALLOWED_SIZE, MAX_GROWTH

MAX_SIZE = 32 << 30  # bytes; a trainer's checkpoint with its softmax and slots has some 5
BLOCK_SIZE = 1 << 20
TIMEOUT = (20, 60)  # seconds without a connection, without a byte
NUM_RETRIES, BACKOFF = 3, 1.0  # of servers that are busy or away; seconds, doubled each time
MAX_WAIT = 60.0  # seconds that a busy server may ask for
BUSY = (429, 500, 502, 503, 504)
PAGE = re.compile(rb"\s*(<!--.*?-->\s*)?<(!doctype\s+html|html|head)\b", re.IGNORECASE | re.DOTALL)
TITLE = re.compile(rb"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)
CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
MAX_NAME_BYTES = 200
PARTIAL_CONTENT, NOT_SATISFIABLE = 206, 416  # answers to a request for the rest
PARTIAL, RECORD = "partial", "download.json"


@dataclass(frozen=True)
class Download:
    """Downloaded file.

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
    """Failure of one address; another address of the same file may work."""


def is_address(source: str) -> bool:
    """Return whether a source is a web address."""
    return source.startswith(("http://", "https://"))


def download(
    addresses: Sequence[str],
    *,
    size: int | None = None,
    sha256: str = "",
    progress: bool = False,
) -> tuple[Path, Download]:
    """Download a file to the Hub's cache, or find it there.

    An interrupted download resumes if the server confirms that the file is the same.

    Args:
        addresses: Addresses of the file, tried in order.
        size: Size in bytes; None = unknown.
        sha256: Checksum; empty = unknown.
        progress: Show a progress bar.

    Returns:
        Its path and description.

    Raises:
        ConversionError: If all addresses fail, or the Hub's libraries are offline.
        OSError: If it cannot be written.
    """
    key = hashlib.sha256(addresses[0].encode()).hexdigest()[:24]
    cache = constants.HF_ASSETS_CACHE
    folder = cached_assets_path("elmo-convert", "downloads", key, assets_dir=cache)
    with FileLock(folder / "lock"):
        if (folder / RECORD).is_file():
            record = Download(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
            path = folder / "file" / record.name
            is_known = size in (None, record.bytes) and sha256 in ("", record.sha256)
            if is_known and path.is_file() and path.stat().st_size == record.bytes:
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
    """Fetch the missing part of a file, as long as each attempt makes progress; return its name."""
    with requests.Session() as session:
        retry = _Retry(
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


class _Retry(Retry):
    """Retries that respect the server's waiting time, up to `MAX_WAIT`."""

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        """Return the seconds to wait; None = default."""
        seconds = super().get_retry_after(response)
        return None if seconds is None or seconds > MAX_WAIT else seconds


def _explain(error: requests.RequestException) -> str:
    if error.response is not None:
        wait = error.response.headers.get("Retry-After")
        later = "" if wait is None else f", try again later (Retry-After: {wait})"
        return f"the server answers {error.response.status_code} {error.response.reason}{later}"
    return f"no whole answer: {error}"


@dataclass(frozen=True)
class _Version:
    """The file that the beginning in the cache is of, as the server describes it.

    Attributes:
        address: Where from.
        name: Its name.
        validator: Its ETag or the date of its last change.
        bytes: Its size.
    """

    address: str
    name: str
    validator: str
    bytes: int


def _fetch_rest(
    session: requests.Session, address: str, partial: Path, size: int | None, progress: bool
) -> str:
    """Fetch a file, or its missing part if the server proves that the file is the same."""
    note = partial.with_name("version.json")
    begun = _read_version(note, address)
    start = partial.stat().st_size if begun is not None and partial.exists() else 0
    if begun is not None and start == begun.bytes:
        return begun.name
    headers = {}
    if begun is not None and start:
        headers = {"Range": f"bytes={start}-", "If-Range": begun.validator}
    with session.get(address, headers=headers, stream=True, timeout=TIMEOUT) as response:
        is_rest = begun is not None and _is_rest(response, begun, start)
        if start and not is_rest and response.status_code in (PARTIAL_CONTENT, NOT_SATISFIABLE):
            partial.unlink()  # begin again
            return _fetch_rest(session, address, partial, size, progress)
        response.raise_for_status()
        if response.status_code != requests.codes.ok and not is_rest:
            raise _DownloadError(
                f"expected the file, the server answers {response.status_code} {response.reason}."
            )
        name = _name_file(response, address)
        start = start if is_rest else 0
        length = _find_length(response)
        total = None if length is None else start + length
        bound = _find_bound(response, size)
        if total is not None and total > bound:
            raise _DownloadError(f"expected at most {bound:,} bytes, the server has {total:,}.")
        if not is_rest:
            partial.unlink(missing_ok=True)  # before it could be taken for one of this version
            _note_version(note, response, address, name, total)
        hidden = {"disable": not progress}
        with (
            partial.open("ab") as file,
            tqdm(
                total=total, initial=start, unit="B", unit_scale=True, desc=name[-40:], **hidden
            ) as bar,
        ):
            try:
                _write_blocks(response, file, bound, bar)
            except _DownloadError:
                partial.unlink()
                raise
            received = file.tell()
    if total not in (None, received):
        raise requests.ConnectionError(f"expected {total:,} bytes, got {received:,}")
    return name


def _write_blocks(
    response: requests.Response, file: IO[bytes], bound: int, bar: "tqdm[Any]"
) -> None:
    for block in response.iter_content(BLOCK_SIZE):
        if file.tell() == 0 and PAGE.match(block):
            raise _page(block)
        if file.tell() + len(block) > bound:
            raise _DownloadError(f"expected at most {bound:,} bytes, got more.")
        file.write(block)
        bar.update(len(block))


def _is_rest(response: requests.Response, begun: _Version, start: int) -> bool:
    """Return whether a response is the missing part of the same file."""
    headers = response.headers
    return (
        response.status_code == PARTIAL_CONTENT
        and headers.get("Content-Range") == f"bytes {start}-{begun.bytes - 1}/{begun.bytes}"
        and _find_validator(response) == begun.validator
        and not _is_encoded(response)
        and _find_length(response) in (None, begun.bytes - start)
    )


def _is_encoded(response: requests.Response) -> bool:
    return response.headers.get("Content-Encoding", "identity").lower() != "identity"


def _find_length(response: requests.Response) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() and not _is_encoded(response) else None


def _find_bound(response: requests.Response, size: int | None) -> int:
    """Return the size limit of a file, also for an encoded response."""
    bound = MAX_SIZE if size is None else size
    if not _is_encoded(response):
        return bound
    length = response.headers.get("Content-Length", "")
    sent = int(length) if length.isdecimal() else 0
    return min(bound, max(ALWAYS_ALLOWED_SIZE, MAX_GROWTH * sent))


def _find_validator(response: requests.Response) -> str:
    """Return the validator of a file's version (ETag or date); empty = none."""
    version = response.headers.get("ETag", response.headers.get("Last-Modified", ""))
    return "" if version.startswith("W/") else version


def _read_version(note: Path, address: str) -> _Version | None:
    """Read the version of the partial file in the cache; None = it cannot be resumed."""
    try:
        version = _Version(**json.loads(note.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError):
        return None
    return version if version.address == address else None


def _note_version(
    note: Path, response: requests.Response, address: str, name: str, total: int | None
) -> None:
    """Store the version of a file, if its rest can be recognised later."""
    validator = _find_validator(response)
    note.unlink(missing_ok=True)
    if validator and total:
        version = _Version(address, name, validator, total)
        note.write_text(json.dumps(asdict(version)), encoding="utf-8")


def _page(block: bytes) -> _DownloadError:
    found = TITLE.search(block)
    title = " ".join(found[1].decode(errors="replace").split())[:80] if found else "no title"
    return _DownloadError(
        f"expected a file, got a web page ({title!r}), as Google Drive, Dropbox and logins send "
        "them. Open the address in a browser, save the file, and convert that."
    )


def _name_file(response: requests.Response, address: str) -> str:
    """Return the file name of the server, or the last part of the address."""
    disposition = response.headers.get("Content-Disposition", "")
    match = re.search(r"filename\*=(?:UTF-8'')?([^;]+)|filename=\"?([^\";]+)", disposition)
    given = [match[1] or match[2]] if match else []
    paths = [*given, urlsplit(address).path, urlsplit(response.url).path]
    names = [unquote(path).replace("\\", "/").rstrip("/").rpartition("/")[2] for path in paths]
    names = [_shorten(CONTROLS.sub("_", name).strip(". ")) for name in names]
    return next((name for name in names if "." in name), next(filter(None, names), "file"))


def _shorten(name: str) -> str:
    """Shorten a name to the limit of file systems, keeping its suffix."""
    return name.encode(errors="replace")[-MAX_NAME_BYTES:].decode(errors="ignore").lstrip(". ")

"""Download files once to a cache: resumable, with a size limit and checksums."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import requests
from filelock import FileLock
from huggingface_hub import cached_assets_path, constants
from requests.adapters import HTTPAdapter
from tqdm import tqdm
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from convert.layout import ConversionError

MAX_SIZE = 32 << 30  # bytes; bilm-tf's checkpoint with softmax and slots has about 5 GiB
BLOCK_SIZE = 1 << 20
TIMEOUT = (20, 60)  # maximum seconds until a connection, and until the next bytes
NUM_RETRIES, BACKOFF = 3, 1.0  # for busy or unreachable servers; in seconds, doubled each time
BUSY = (429, 500, 502, 503, 504)
PAGE = re.compile(rb"\s*(<!--.*?-->\s*)?<(!doctype\s+html|html|head)\b", re.IGNORECASE | re.DOTALL)
TITLE = re.compile(rb"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)
# Parameters of an address that give access to the file.
SECRET = re.compile(
    r"((?:^|[&;])[^=&;]*(?:auth|cred|key|pass|sec|sig|tok)[^=&;]*=)[^&;]*", re.IGNORECASE
)
QUERY = re.compile(r"\?[^\s\"')]+")  # of an address in an error
UNUSUAL = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"|?*]')  # not allowed in names on Windows
MAX_NAME_BYTES = 200
PARTIAL_CONTENT, NOT_SATISFIABLE = 206, 416  # answers to a request for the rest of a file
RECORD = "download.json"


@dataclass(frozen=True)
class Download:
    """Downloaded file.

    Attributes:
        address: Web address of the file.
        name: File name.
        bytes: Size in bytes.
        sha256: SHA-256 checksum.
    """

    address: str
    name: str
    bytes: int
    sha256: str


def show_address(address: str) -> str:
    """Return an address without its user name, password, tokens and signatures."""
    parts = urlsplit(address)
    query = SECRET.sub(r"\1…", parts.query)
    netloc = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=netloc, query=query, fragment="").geturl()


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

    An interrupted download resumes if the server confirms that the file is unchanged.

    Args:
        addresses: Addresses of the file, tried in order.
        size: Size in bytes; None = unknown.
        sha256: Checksum; empty = unknown.
        progress: Show a progress bar.

    Returns:
        The path of the file, and its description.

    Raises:
        ConversionError: If all addresses fail, or HF_HUB_OFFLINE is set and the file is not cached.
        OSError: If the file cannot be written.
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
                f"{show_address(addresses[0])}: is not in the cache, and HF_HUB_OFFLINE is set."
            )
        problems = []
        for address in addresses:
            try:
                return _download_from(address, folder, size, sha256, progress)
            except ConversionError as error:
                problems.append(f"{show_address(address)}: {error}")
        raise ConversionError("\n".join(problems))


def _download_from(
    address: str, folder: Path, size: int | None, sha256: str, progress: bool
) -> tuple[Path, Download]:
    partial = folder / "partial"
    name = _fetch(address, partial, MAX_SIZE if size is None else size, progress)
    with partial.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    record = Download(show_address(address), name, partial.stat().st_size, actual)
    if size not in (None, record.bytes) or sha256 not in ("", actual):
        partial.unlink()
        raise ConversionError(
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


def _fetch(address: str, partial: Path, bound: int, progress: bool) -> str:
    """Fetch the rest of a file; retry while attempts make progress; return the file's name."""
    with requests.Session() as session:
        retry = Retry(
            NUM_RETRIES,
            backoff_factor=BACKOFF,
            status_forcelist=BUSY,
            raise_on_status=False,
            respect_retry_after_header=False,  # the server may ask to wait for a day
        )
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(max_retries=retry))
        session.headers.update({"User-Agent": "elmo-convert", "Accept-Encoding": "identity"})
        before = -1
        while True:
            try:
                return _fetch_rest(session, address, partial, bound, progress)
            except ConversionError:
                partial.unlink(missing_ok=True)
                raise
            except (requests.RequestException, HTTPError) as error:
                now = partial.stat().st_size if partial.exists() else 0
                if now <= before or isinstance(error, requests.HTTPError):
                    raise ConversionError(f"{_explain(error)} ({now:,} bytes are here).") from error
                before = now


def _explain(error: Exception) -> str:
    if not isinstance(error, requests.RequestException) or error.response is None:
        return f"no whole answer: {QUERY.sub('?…', str(error))}"
    wait = error.response.headers.get("Retry-After")
    later = "" if wait is None else f", try again later (Retry-After: {wait})"
    return f"the server answers {error.response.status_code} {error.response.reason}{later}"


def _fetch_rest(
    session: requests.Session, address: str, partial: Path, bound: int, progress: bool
) -> str:
    """Fetch a file, or only its missing part if the server proves that the file is unchanged."""
    note = partial.with_name("version.json")  # describes the file that the partial one belongs to
    version = _read_version(note, address)
    start = partial.stat().st_size if version and partial.exists() else 0
    if version and start == version["bytes"]:
        return str(version["name"])
    headers = {"Range": f"bytes={start}-", "If-Range": version["tag"]} if start else {}
    with session.get(address, headers=headers, stream=True, timeout=TIMEOUT) as response:
        is_rest = start > 0 and _is_rest(response, version, start)
        if start and not is_rest and response.status_code in (PARTIAL_CONTENT, NOT_SATISFIABLE):
            partial.unlink()  # start again
            return _fetch_rest(session, address, partial, bound, progress)
        response.raise_for_status()
        if response.status_code != requests.codes.ok and not is_rest:
            raise ConversionError(
                f"expected the file, the server answers {response.status_code} {response.reason}."
            )
        if not is_rest:
            partial.unlink(missing_ok=True)  # first, since the new note is not about this file
            version = _describe(response, address)
            note.write_text(json.dumps(version), encoding="utf-8")
        _append(response, partial, version, bound, progress)
    return str(version["name"])


def _describe(response: requests.Response, address: str) -> dict[str, Any]:
    tag = response.headers.get("ETag", "")
    return {
        "address": address,
        "name": _name_file(response, address),
        "tag": "" if tag.startswith("W/") else tag,  # a weak tag does not prove equal bytes
        "bytes": response.raw.length_remaining,
    }


def _read_version(note: Path, address: str) -> dict[str, Any]:
    """Read the description of the partial file; empty = it cannot be resumed."""
    try:
        version: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
        is_known = version["address"] == address and version["tag"] and version["bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return version if is_known else {}


def _is_rest(response: requests.Response, version: Mapping[str, Any], start: int) -> bool:
    """Return whether a response is the missing part of the same file."""
    size = version["bytes"]
    return (
        response.status_code == PARTIAL_CONTENT
        and response.headers.get("Content-Range") == f"bytes {start}-{size - 1}/{size}"
        and response.headers.get("ETag") == version["tag"]
        and response.raw.length_remaining in (None, size - start)
    )


def _append(
    response: requests.Response,
    partial: Path,
    version: Mapping[str, Any],
    bound: int,
    progress: bool,
) -> None:
    """Append the received bytes; if the server compresses them, they are saved compressed."""
    total, name = version["bytes"], version["name"]
    if total is not None and total > bound:
        raise ConversionError(f"expected at most {bound:,} bytes, the server has {total:,}.")
    with partial.open("ab") as file:
        start = file.tell()
        with tqdm(
            total=total,
            initial=start,
            unit="B",
            unit_scale=True,
            desc=name[-40:],
            disable=not progress,
        ) as bar:
            for block in response.raw.stream(BLOCK_SIZE, decode_content=False):
                if file.tell() == 0 and PAGE.match(block):
                    raise _page(block)
                if file.tell() + len(block) > bound:
                    raise ConversionError(f"expected at most {bound:,} bytes, got more.")
                file.write(block)
                bar.update(len(block))
        received = file.tell()
    if total not in (None, received):
        raise requests.ConnectionError(f"expected {total:,} bytes, got {received:,}")


def _page(block: bytes) -> ConversionError:
    found = TITLE.search(block)
    title = " ".join(found[1].decode(errors="replace").split())[:80] if found else "no title"
    return ConversionError(
        f"expected a file, got a web page ({title!r}), as Google Drive, Dropbox and logins send "
        "them. Open the address in a browser, save the file, and convert that."
    )


def _name_file(response: requests.Response, address: str) -> str:
    """Return the file name that the server states, or else the last part of the address."""
    header = Message()
    header["Content-Disposition"] = response.headers.get("Content-Disposition", "")
    paths = [header.get_filename(""), urlsplit(address).path, urlsplit(response.url).path]
    names = [unquote(path).replace("\\", "/").rstrip("/").rpartition("/")[2] for path in paths]
    names = [UNUSUAL.sub("_", name).strip(". ") for name in names]
    names = [  # keep the end of a long name, with the suffix
        name.encode(errors="replace")[-MAX_NAME_BYTES:].decode(errors="ignore").lstrip(". ")
        for name in names
    ]
    return next((name for name in names if "." in name), next(filter(None, names), "file"))

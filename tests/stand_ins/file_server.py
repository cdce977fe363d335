"""A local server of files that can be slow, break off, lie, redirect, be busy, or send pages."""

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from convert.download import download


@dataclass
class Served:
    """A file and how it is served.

    Attributes:
        data: Its bytes.
        status: The answer's status, of the first `num_faults` answers or of all.
        redirect: Where it really lies; None = here.
        name: What Content-Disposition calls it; None = nothing.
        breaks_at: How many bytes an answer sends before the connection ends; None = all.
        length: The length that is told in place of the true one; None = the true one.
        has_length: Whether the length is told.
        num_faults: How many answers are faulty; None = all.
        has_ranges: Whether a part can be asked for.
        shift: How many bytes further than asked for a part begins.
        has_tag: Whether versions can be told from each other.
        heeds_versions: Whether `If-Range` is heeded.
        part: Answer a request for a part by this status, headers and body; None = as usual.
        headers: Further headers.
        block_size: Bytes that are sent at a time.
        wait: Seconds between these.
    """

    data: bytes
    status: int = 200
    redirect: str | None = None
    name: str | None = None
    breaks_at: int | None = None
    length: int | None = None
    has_length: bool = True
    num_faults: int | None = None
    has_ranges: bool = True
    shift: int = 0
    has_tag: bool = True
    heeds_versions: bool = True
    part: tuple[int, dict[str, str], bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    block_size: int = 1 << 16
    wait: float = 0.0


@dataclass
class Request:
    path: str
    range: str | None


class FileServer(ThreadingHTTPServer):
    """Files by their path; notes what was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, Served] = {}
        self.requests: list[Request] = []
        self.counts: Counter[str] = Counter()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that have gone away."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def put(self, path: str, data: bytes, **how: Any) -> str:
        """Serve a file; returns its address."""
        self.files[path] = Served(data, **how)
        return self.url + path


def download_into(cache: Path, address: str) -> None:
    """Download a file to a cache, in a process that knows of no other settings."""
    constants.HF_ASSETS_CACHE, constants.HF_HUB_OFFLINE = str(cache), False
    download([address])


@contextmanager
def run_file_server() -> Iterator[FileServer]:
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    server: FileServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        range_asked = self.headers.get("Range")
        self.server.requests.append(Request(self.path, range_asked))
        file = self.server.files.get(self.path, Served(b"nothing here", status=404))
        self.server.counts[self.path] += 1
        is_faulty = file.num_faults is None or self.server.counts[self.path] <= file.num_faults
        if file.redirect is not None:
            self.send_response(302)
            self.send_header("Location", file.redirect)
            self.end_headers()
        elif is_faulty and file.status != 200:
            self.send_response(file.status)
            for name, value in ({"Content-Length": "0"} | file.headers).items():
                self.send_header(name, value)
            self.end_headers()
        else:
            self.send_file(file, range_asked, is_faulty)

    def send_file(self, file: Served, range_asked: str | None, is_faulty: bool) -> None:
        tag = f'"{hashlib.sha256(file.data).hexdigest()}"'
        start = 0
        if range_asked and file.part is not None:
            status, headers, body = file.part
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            return
        is_same = not file.heeds_versions or self.headers.get("If-Range") in (None, tag)
        if range_asked and file.has_ranges and is_same:
            start = int(range_asked.removeprefix("bytes=").rstrip("-")) + file.shift
        if start >= len(file.data) > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(file.data)}")
            self.send_name(file)
            self.end_headers()
            return
        body = file.data[start:]
        self.send_response(206 if start else 200)
        told = file.length if is_faulty and file.length is not None else len(body)
        if file.has_length:
            self.send_header("Content-Length", str(told))
        if start:
            self.send_header(
                "Content-Range", f"bytes {start}-{len(file.data) - 1}/{len(file.data)}"
            )
        if file.has_tag:
            self.send_header("ETag", tag)
        self.send_name(file)
        for name, value in file.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if is_faulty and file.breaks_at is not None:
            body = body[: file.breaks_at]
        for position in range(0, len(body), file.block_size):
            self.wfile.write(body[position : position + file.block_size])
            time.sleep(file.wait)

    def send_name(self, file: Served) -> None:
        if file.name is not None:
            self.send_header("Content-Disposition", f'attachment; filename="{file.name}"')

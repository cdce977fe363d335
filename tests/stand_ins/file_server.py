"""A local server of files, which can answer with errors or break off."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Served:
    """A file, its name in Content-Disposition, and the bytes after which the answer breaks off."""

    data: bytes
    name: str | None = None
    breaks_at: int | None = None


class FileServer(ThreadingHTTPServer):
    """Files by their path; notes what was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, Served] = {}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def put(self, path: str, data: bytes, **how: Any) -> str:
        """Serve a file; returns its address."""
        self.files[path] = Served(data, **how)
        return self.url + path


class Handler(BaseHTTPRequestHandler):
    server: FileServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        file = self.server.files.get(self.path)
        self.send_response(404 if file is None else 200)
        data = b"nothing here" if file is None else file.data
        self.send_header("Content-Length", str(len(data)))
        if file is not None and file.name is not None:
            self.send_header("Content-Disposition", f'attachment; filename="{file.name}"')
        self.end_headers()
        self.wfile.write(data if file is None else data[: file.breaks_at])


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

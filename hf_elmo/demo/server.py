"""The demo on localhost, with the standard library: one page, and answers about sentences."""

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from .explorer import Explorer
from .page import make_query

HOST = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")  # a page from elsewhere that points its name at us is refused
MAX_BYTES = 16_384  # of a question
SECONDS = 10  # to send it


class DemoServer(ThreadingHTTPServer):
    """A server that only this machine can reach.

    Args:
        explorer: Answers for sentences.
        page: The HTML.
        port: Port on 127.0.0.1; 0 = any that is free.
    """

    def __init__(self, explorer: Explorer, page: str, port: int) -> None:
        super().__init__((HOST, port), DemoHandler)
        self.explorer, self.page = explorer, page
        self.lock = threading.Lock()  # one sentence at a time


class DemoHandler(BaseHTTPRequestHandler):
    """One request: for the page, or about a word in its sentence."""

    timeout = SECONDS

    def do_GET(self) -> None:
        """Send the page."""
        if self._is_from_here() and self.path == "/":
            self._send(HTTPStatus.OK, "text/html", cast(DemoServer, self.server).page)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """Check a question before it is read, and answer it."""
        length = self.headers.get("Content-Length", "")
        if not self._is_from_here() or self.path != "/query":
            self.send_error(HTTPStatus.NOT_FOUND)
        elif self.headers.get_content_type() != "application/json":  # no form can send it
            self.send_error(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        elif not length.isdecimal() or int(length) > MAX_BYTES:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            self._answer(self.rfile.read(int(length)))

    def _answer(self, question: bytes) -> None:
        server = cast(DemoServer, self.server)
        try:
            words, position = _read_question(question)
            with server.lock:
                status, answer = HTTPStatus.OK, make_query(server.explorer, words, position)
        except ValueError as error:
            status, answer = HTTPStatus.BAD_REQUEST, {"error": str(error)}
        self._send(status, "application/json", json.dumps(answer))

    def _is_from_here(self) -> bool:
        return self.headers.get("Host", "").partition(":")[0] in NAMES

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode("utf-8", errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Keep quiet: what is asked is nobody's business."""


def _read_question(question: bytes) -> tuple[list[str], int]:
    """Read the words and the position that the page asks about.

    Raises:
        ValueError: If it is no such question.
    """
    match json.loads(question):
        case {"words": [*words], "position": int(position)}:
            if all(isinstance(word, str) for word in words):
                return words, position
    raise ValueError('Expected {"words": [...], "position": ...}.')

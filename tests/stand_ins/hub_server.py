"""A local stand-in of the Hugging Face Hub: repositories in memory, over HTTP."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0" * 40
TOKEN = "hf_of_the_stand_in"


class Hub(ThreadingHTTPServer):
    """What was uploaded, by repository and file name."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.large_files: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def run_hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def reply(self, content: Any = None, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def do_PUT(self) -> None:
        data = self.read()
        self.server.large_files[hashlib.sha256(data).hexdigest()] = data
        self.reply()

    def do_POST(self) -> None:
        data, path = self.read(), self.path.partition("?")[0]
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.reply({"error": "Unauthorized"}, 401)
        elif path == "/api/repos/create":
            fields = json.loads(data)
            name = "/".join(filter(None, (fields.get("organization"), fields["name"])))
            exists = name in self.server.repositories
            self.server.repositories.setdefault(name, {})
            self.reply({"url": f"{self.server.url}/{name}"}, 409 if exists else 200)
        elif path == "/api/validate-yaml":
            self.reply({"errors": [], "warnings": []})
        elif path.endswith("/preupload/main"):
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(data)["files"]
            ]
            self.reply({"files": files})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                item | {"actions": {"upload": {"href": f"{self.server.url}/upload"}}}
                for item in json.loads(data)["objects"]
            ]
            self.reply({"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            name = path.removeprefix("/api/models/").partition("/commit/")[0]
            for line in data.splitlines():
                self.commit(self.server.repositories[name], json.loads(line))
            url = f"{self.server.url}/{name}/commit/{COMMIT}"
            self.reply({"success": True, "commitOid": COMMIT, "commitUrl": url, "hookOutput": ""})
        else:
            self.reply({"error": f"no {self.path}"}, 404)

    def commit(self, files: dict[str, bytes], item: dict[str, Any]) -> None:
        value = item["value"]
        if item["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif item["key"] == "lfsFile":
            files[value["path"]] = self.server.large_files[value["oid"]]
        elif item["key"] == "deletedFile":
            del files[value["path"]]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        for name, files in self.server.repositories.items():
            if path.startswith(f"/api/models/{name}/tree/"):
                tree = [
                    {"type": "file", "path": file, "size": len(data), "oid": COMMIT}
                    for file, data in files.items()
                ]
                self.reply(tree)
                return
            if path.startswith(f"/api/models/{name}"):
                siblings = [{"rfilename": file} for file in files]
                self.reply({"id": name, "sha": COMMIT, "siblings": siblings})
                return
            file = path.removeprefix(f"/{name}/resolve/").partition("/")[2]
            if path.startswith(f"/{name}/resolve/") and file in files:
                etag = hashlib.sha256(files[file]).hexdigest()
                self.reply(files[file], ETag=f'"{etag}"', X_Repo_Commit=COMMIT)
                return
        error = {"X_Error_Code": "RepoNotFound", "X_Error_Message": "Repository not found"}
        self.reply({"error": "Repository not found"}, 404, **error)

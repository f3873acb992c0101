"""A server that is not ours: operations over the JSON mapping of google.longrunning, by hand.

It knows List, Get, Cancel and Delete, below ``/v1`` or another prefix, and none of our extensions.
Its errors are those of Google's services. ``python -m tests.console.other_server`` runs it.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TYPE = "type.googleapis.com/acme.other.v1."


class OtherServer(ThreadingHTTPServer):
    """The operations by name, newest first, and the calls that came, with their headers."""

    daemon_threads = True

    def __init__(self, port: int = 0, prefix: str = "/v1", token: str = "") -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.prefix = prefix
        self.token = token
        self.operations: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, str, dict[str, str]]] = []
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing where the client has gone: a test may read what its process writes."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, name: str, percent: int = 0, **more: Any) -> str:
        """Put an operation at the top of the list."""
        metadata = {"@type": f"{TYPE}Progress", "progressPercent": percent, "verb": "build"}
        made = {"name": name, "metadata": metadata, **more}
        with self.lock:
            self.operations = {name: made, **self.operations}
        return name

    def finish(self, name: str, **result: Any) -> None:
        """End an operation: with ``error``, or with ``response``."""
        result = result or {"response": {"@type": f"{TYPE}Built", "image": "registry/x:1"}}
        self.operations[name] = {**self.operations[name], "done": True, **result}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OtherServer

    def _answer(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        path = urlsplit(self.path).path
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.calls.append((self.command, self.path, headers))
        if self.server.token and headers.get("authorization") != f"Bearer {self.server.token}":
            self._refuse(401, "UNAUTHENTICATED", "Request is missing required credential.")
        elif not path.startswith(f"{self.server.prefix}/"):
            self._no_such_path()
        else:
            self._call(unquote(path.removeprefix(f"{self.server.prefix}/")), body)

    do_GET = do_POST = do_DELETE = _answer

    def _call(self, name: str, body: bytes) -> None:
        found = re.fullmatch(r"(?P<name>(?:.+/)?operations(?:/[^/:]+)?)(?::(?P<verb>\w+))?", name)
        one = found is not None and not found["name"].endswith("operations")
        call = (self.command, found["verb"] if found else None, one)
        if found is None or call not in _CALLS:
            self._no_such_path()
        elif not one:
            self._list(found["name"].removesuffix("operations"))
        elif found["name"] not in self.server.operations:
            self._refuse(404, "NOT_FOUND", f"Operation {found['name']} not found.")
        elif self.command == "POST" and json.loads(body or b"{}") != {}:
            self._refuse(400, "INVALID_ARGUMENT", "Invalid JSON payload received.")
        else:
            getattr(self, _CALLS[call])(found["name"])

    def _list(self, above: str) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "filter" in query and "done" not in query["filter"][0]:
            self._refuse(400, "INVALID_ARGUMENT", "Invalid filter.")
            return
        wanted = "true" in query.get("filter", [""])[0]
        found = [
            one
            for name, one in self.server.operations.items()
            if name.startswith(f"{above}operations/")
            and ("filter" not in query or one.get("done", False) is wanted)
        ]
        size = int(query.get("pageSize", ["50"])[0]) or 50
        begin = int(query.get("pageToken", ["0"])[0])
        page: dict[str, Any] = {"operations": found[begin : begin + size]}
        if begin + size < len(found):
            page["nextPageToken"] = str(begin + size)
        self._send(200, page)

    def _get(self, name: str) -> None:
        self._send(200, self.server.operations[name])

    def _cancel(self, name: str) -> None:
        if not self.server.operations[name].get("done"):
            error = {"code": 1, "message": "Operation was cancelled."}
            self.server.finish(name, error=error)
        self._send(200, {})

    def _delete(self, name: str) -> None:
        del self.server.operations[name]
        self._send(200, {})

    def _no_such_path(self) -> None:
        page = b"<!DOCTYPE html><title>Error 404 (Not Found)!!1</title><p>That's an error.</p>"
        self._send(404, page, "text/html; charset=UTF-8")

    def _refuse(self, http: int, status: str, message: str) -> None:
        self._send(http, {"error": {"code": http, "message": message, "status": status}})

    def _send(self, status: int, value: Any, kind: str = "application/json; charset=UTF-8") -> None:
        body = value if isinstance(value, bytes) else json.dumps(value, indent=2).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        if status == 401:
            self.send_header("www-authenticate", 'Basic realm="other"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


_CALLS = {
    ("GET", None, False): "_list",
    ("GET", None, True): "_get",
    ("DELETE", None, True): "_delete",
    ("POST", "cancel", True): "_cancel",
}


@contextmanager
def other_server(prefix: str = "/v1", token: str = "") -> Iterator[OtherServer]:
    """Such a server, which listens for as long as this lasts."""
    server = OtherServer(prefix=prefix, token=token)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    import sys

    made = OtherServer(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    for number in range(60):
        made.add(f"operations/build-{number:03}", percent=number)
    print(made.url, flush=True)
    made.serve_forever()

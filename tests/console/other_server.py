"""A server written without this library: operations in the JSON form of google.longrunning.

The server supports List, Get, Cancel and Delete, below ``/v1`` or another prefix, and none of our
extensions. Its errors are those of Google's services.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import parse_qs

import attrs

from tests.http.servers import HOST, uvicorn_serving

TYPE: Final = "type.googleapis.com/acme.other.v1."
NAME: Final = re.compile(r"(?P<name>(?:.+/)?operations(?P<id>/[^/:]+)?)(?::(?P<verb>\w+))?")
PAGE: Final = b"<!DOCTYPE html><title>Error 404 (Not Found)!!1</title><p>That's an error.</p>"


class Refused(Exception):
    """A call that is refused: its HTTP status, code and message."""


@attrs.define(eq=False)
class OtherServer:
    """An ASGI app with operations by name, newest first, and a list of the calls it received."""

    prefix: str
    token: str
    server_port: int = 0
    operations: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    calls: list[tuple[str, str, dict[str, str]]] = attrs.field(factory=list)

    @property
    def url(self) -> str:
        """The server's base URL."""
        return f"http://{HOST}:{self.server_port}"

    def add(self, name: str, percent: int = 0) -> str:
        """Add an operation at the top of the list, and return its name."""
        metadata = {"@type": f"{TYPE}Progress", "progressPercent": percent, "verb": "build"}
        self.operations = {name: {"name": name, "metadata": metadata}, **self.operations}
        return name

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message["body"]
        query, status = scope["query_string"].decode(), 200
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        asked = scope["raw_path"].decode() + (f"?{query}" if query else "")
        self.calls.append((scope["method"], asked, headers))
        kind = "application/json; charset=UTF-8"
        try:
            if self.token and headers.get("authorization") != f"Bearer {self.token}":
                raise Refused(401, "UNAUTHENTICATED", "Request lacks a required credential.")
            payload = json.dumps(self._call(scope["method"], scope["path"], query, body)).encode()
        except Refused as exc:
            status, code, said = exc.args
            error = {"code": status, "message": said, "status": code}
            payload = json.dumps({"error": error}).encode()
        except LookupError:
            status, payload, kind = 404, PAGE, "text/html; charset=UTF-8"
        sent = {"content-type": kind, "content-length": str(len(payload))}
        if status == 401:
            sent["www-authenticate"] = 'Basic realm="other"'
        pairs = [(name.encode(), value.encode()) for name, value in sent.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": payload})

    def _call(self, method: str, path: str, query: str, body: bytes) -> Any:
        """Return the reply's value.

        Raises:
            LookupError: There is no such path.
            Refused: The call is refused.
        """
        found = NAME.fullmatch(path.removeprefix(f"{self.prefix}/"))
        if found is None or not path.startswith(f"{self.prefix}/"):
            raise LookupError(path)
        name, verb = found["name"], found["verb"]
        match method, verb, found["id"] is not None:
            case "GET", None, False:
                return self._list(name.removesuffix("operations"), parse_qs(query))
            case ("GET" | "DELETE", None, True) | ("POST", "cancel", True):
                if name not in self.operations:
                    raise Refused(404, "NOT_FOUND", f"Operation {name} not found.")
            case _:
                raise LookupError(path)
        if method == "POST" and json.loads(body or b"{}") != {}:
            raise Refused(400, "INVALID_ARGUMENT", "Invalid JSON payload received.")
        operation = self.operations[name]
        if method == "DELETE":
            del self.operations[name]
        elif verb and not operation.get("done"):
            error = {"code": 1, "message": "Operation was cancelled."}
            self.operations[name] = {**operation, "done": True, "error": error}
        return operation if method == "GET" else {}

    def _list(self, above: str, query: dict[str, list[str]]) -> Any:
        if "filter" in query and "done" not in query["filter"][0]:
            raise Refused(400, "INVALID_ARGUMENT", "Invalid filter.")
        wanted = "true" in query.get("filter", [""])[0]
        found = [
            one
            for name, one in self.operations.items()
            if name.startswith(f"{above}operations/")
            and ("filter" not in query or one.get("done", False) is wanted)
        ]
        size = int(query.get("pageSize", ["50"])[0]) or 50
        begin = int(query.get("pageToken", ["0"])[0])
        more = {"nextPageToken": str(begin + size)} if begin + size < len(found) else {}
        return {"operations": found[begin : begin + size], **more}


@contextmanager
def other_server(prefix: str = "/v1", token: str = "") -> Iterator[OtherServer]:
    """Serve an ``OtherServer`` during the block."""
    server = OtherServer(prefix, token)
    with uvicorn_serving(server, lifespan="off") as server.server_port:
        yield server

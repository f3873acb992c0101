"""Call a server over HTTP with raw requests of httpx; the size of replies is limited."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import quote, quote_plus

import attrs
import httpx

from lro_conform._checks import HTTP
from lro_conform._codes import CODES
from lro_conform._strict_json import read_json, shown
from lro_conform.server._answers import BY_HTTP_STATUS, Answer, WireReply

MAX_REPLY: Final = 16 * 1024 * 1024
"""Maximum size of a reply in bytes."""

_JSON: Final = "application/json"
_GZIP: Final = zlib.MAX_WBITS | 16
"""The ``wbits`` of zlib for the gzip format."""
_IDLE_SECONDS: Final = 1.0
"""Seconds that an idle connection is kept, so that it is closed before the server closes it."""


Headers: TypeAlias = Sequence[tuple[str, str]]


def encoded(name: str) -> str:
    """Percent-encode a name for a path, except unreserved characters and slashes."""
    return quote(name, safe="/-_.~")


def duration(seconds: float) -> str:
    """Return seconds as a Duration of ProtoJSON."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


@attrs.define(kw_only=True)
class HttpTarget:
    """A server at a URL, with the path prefix of operation names.

    ``call_seconds`` is the maximum duration of a call, from connecting to the reply's last byte.
    """

    transport: str = attrs.field(default=HTTP, init=False)
    address: str
    prefix: str = "/v1"
    headers: Headers = ()
    call_seconds: float = 10.0
    through: httpx.AsyncBaseTransport | None = None
    log: list[Answer] = attrs.field(factory=list)
    _client: httpx.AsyncClient = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.address = self.address.rstrip("/")
        self._client = httpx.AsyncClient(
            transport=self.through,
            timeout=self.call_seconds,
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS),
            follow_redirects=False,
            event_hooks={"response": [_forget_location]},
        )

    def path(self, name: str, verb: str = "") -> str:
        """Return the path of an operation, or of a custom method on it."""
        return f"{self.prefix}/{encoded(name)}{verb}"

    async def get(self, name: str) -> Answer:
        return await self.ask("GET", self.path(name), rpc="get")

    async def list(
        self,
        parent: str,
        *,
        page_size: int | None = None,
        page_token: str | None = None,
        filter: str | None = None,
    ) -> Answer:
        given = {"pageSize": page_size, "pageToken": page_token, "filter": filter}
        query = {key: str(value) for key, value in given.items() if value is not None}
        return await self.ask("GET", self.list_path(parent), query=query, rpc="list")

    def list_path(self, parent: str) -> str:
        """Return the path of the operations of a parent."""
        return self.path(f"{parent}/operations" if parent else "operations")

    async def cancel(self, name: str) -> Answer:
        return await self.ask("POST", self.path(name, ":cancel"), body={}, rpc="cancel")

    async def delete(self, name: str) -> Answer:
        return await self.ask("DELETE", self.path(name), rpc="delete")

    async def wait(self, name: str, timeout: float | None = None) -> Answer:
        body = {} if timeout is None else {"timeout": duration(timeout)}
        return await self.ask("POST", self.path(name, ":wait"), body=body, rpc="wait")

    async def aclose(self) -> None:
        await self._client.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content: bytes | None = None,
        content_type: str = _JSON,
        rpc: str = "",
        anonymous: bool = False,
    ) -> Answer:
        """Send a request, and read the reply as a reply of the interface.

        The path and ``content`` are sent unchanged, ``body`` as JSON. A request without ``rpc`` is
        outside the interface. An ``anonymous`` request is sent without the user's headers.
        """
        if query:
            path += "?" + "&".join(f"{quote_plus(k)}={quote_plus(v)}" for k, v in query.items())
        if body is not None:
            content = json.dumps(body).encode()
        own = () if anonymous else self.headers
        sent = [("accept", _JSON), ("accept-encoding", "gzip"), *own]
        if content is not None:
            sent.append(("content-type", content_type))
        call = f"{method} {path if len(path) <= _LONGEST else path[:_LONGEST] + '...'}"
        began = time.monotonic()
        reply, fault = await self._exchange(method, path, sent, content)
        lost = reply is None
        answer = Answer(
            call=call,
            rpc=rpc,
            code="",
            fault=fault,
            lost=lost,
            foreign=not rpc,
            http=reply,
            size=len(reply.body) if reply is not None else 0,
            began=began,
            ended=time.monotonic(),
        )
        if reply is not None and not fault and method not in ("HEAD", "OPTIONS"):
            answer = attrs.evolve(answer, **_read(reply))
        self.log.append(answer)
        return answer

    async def _exchange(
        self, method: str, path: str, headers: Headers, content: bytes | None
    ) -> tuple[WireReply | None, str]:
        try:
            url = httpx.URL(self.address)
            base = url.raw_path.rstrip(b"/") if url.raw_path != b"/" else b""
            raw = base + path.encode("utf-8", "surrogateescape")
            request = self._client.build_request(
                method, url.copy_with(raw_path=raw), headers=list(headers), content=content
            )
            async with asyncio.timeout(self.call_seconds):
                return await self._send(request)
        except TimeoutError:
            return None, f"no whole reply within {self.call_seconds:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as exc:
            why = str(exc).encode("ascii", "backslashreplace").decode()
            return None, f"no reply ({type(exc).__name__}: {why[:_LONGEST]})"

    async def _send(self, request: httpx.Request) -> tuple[WireReply | None, str]:
        fault, body = "", bytearray()
        reply = await self._client.send(request, stream=True)
        coding = reply.headers.get("content-encoding", "identity").lower()
        unpacks = zlib.decompressobj(_GZIP)
        try:
            async for chunk in reply.aiter_raw():
                left = b"" if coding == "identity" else chunk
                body += b"" if left else chunk
                while left and len(body) <= MAX_REPLY:
                    if unpacks.eof:  # another gzip member follows (RFC 1952 §2.2)
                        unpacks = zlib.decompressobj(_GZIP)
                    # Limit each piece: httpx itself would decompress a gzip bomb completely.
                    body += unpacks.decompress(left, MAX_REPLY + 1 - len(body))
                    left = unpacks.unused_data
                if len(body) > MAX_REPLY:
                    fault = f"a reply of more than {MAX_REPLY} bytes"
                    break
        except zlib.error:
            fault = f"a body that is not gzip, with Content-Encoding {shown(coding)}"
        finally:
            await reply.aclose()
        headers = {name.lower(): value for name, value in reply.headers.items()}
        return WireReply(status=reply.status_code, headers=headers, body=bytes(body)), fault


_LONGEST: Final = 200
_WITHOUT_BODY: Final = (204, 205)


async def _forget_location(reply: httpx.Response) -> None:
    """Keep httpx from reading the target of a redirect, which fails for an invalid address."""
    reply.headers.pop("location", None)


def _read(reply: WireReply) -> dict[str, Any]:
    if not 200 <= reply.status < 600 or 300 <= reply.status < 400:
        return {"fault": f"the status {reply.status}, which no code stands for"}
    success = reply.status < 300
    if reply.status in _WITHOUT_BODY:
        why = f"status {reply.status}, which has no body: a message is expected, with 200"
        return {"code": "OK", "fault": f"{why}; an empty one is {{}}"}
    try:
        value, notes = read_json(reply.body)
    except ValueError as exc:
        why = f"status {reply.status} with a body that is not JSON: {shown(str(exc))}"
        return {"code": "OK", "fault": why} if success else {"code": _code(reply.status)}
    if not isinstance(value, dict):
        why = f"status {reply.status} with a body that is not a JSON object: {shown(value)}"
        return {"code": "OK", "fault": why} if success else {"code": _code(reply.status)}
    if success:
        return {"code": "OK", "body": value, "notes": notes}
    error = value.get("error")
    error = error if isinstance(error, dict) else {}
    named = error.get("status")
    code = named if named in CODES[1:] else _code(reply.status)
    return {"code": code, "error": error, "notes": notes}


def _code(status: int) -> str:
    return BY_HTTP_STATUS.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")

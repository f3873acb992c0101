"""A peer over HTTP/1.1 on a plain socket, which can violate HTTP if a script asks for it."""

from __future__ import annotations

import asyncio
import http
import json
import re
from collections.abc import Mapping
from typing import Final, NoReturn
from urllib.parse import parse_qs, unquote, urlsplit

import attrs

from lro_conform._codes import HTTP_STATUSES
from lro_conform.client._listener import HOST, PeerListener, reset_connection
from lro_conform.client._steps import (
    Acknowledges,
    Answer,
    JsonObject,
    Lists,
    Performance,
    Refuses,
    SeenCall,
    Shows,
    Silent,
    Verb,
)

_PATH: Final = re.compile(r"/v1/(?P<name>.+?)(?P<custom>:\w+)?")
_CUSTOM: Final = {":wait": Verb.WAIT, ":cancel": Verb.CANCEL}
_JSON: Final = {"Content-Type": "application/json"}


@attrs.frozen
class PeerRequest:
    """A received request; the names in ``headers`` are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]

    def verb(self, name: str) -> Verb:
        """Return the verb that this request calls on the operation ``name`` or its collection."""
        found = _PATH.fullmatch(unquote(urlsplit(self.target).path))
        if found is None:
            return Verb.OTHER
        if found["name"] == name:
            if found["custom"]:
                return _CUSTOM.get(found["custom"], Verb.OTHER)
            return {"GET": Verb.GET, "DELETE": Verb.DELETE}.get(self.method, Verb.OTHER)
        listed = self.method == "GET" and found["name"] == name.rpartition("/")[0]
        return Verb.LIST if listed else Verb.OTHER

    @property
    def page_token(self) -> str:
        """The page token of the query."""
        return parse_qs(urlsplit(self.target).query).get("pageToken", [""])[0]


async def read_request(reader: asyncio.StreamReader) -> PeerRequest | None:
    """Return the next request of a connection, with its body; None after the last request."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    method, target, _ = first.split(" ", 2)
    if "chunked" in headers.get("transfer-encoding", "").lower():
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            await reader.readexactly(size + 2)
        await reader.readuntil(b"\r\n")
    await reader.readexactly(int(headers.get("content-length", "0")))
    return PeerRequest(method, target, headers)


def error_body(answer: Refuses) -> bytes:
    """Return the body of an error in the form of Google's services (AIP-193)."""
    status: JsonObject = {
        "code": HTTP_STATUSES[answer.code.name],
        "message": answer.message,
        "status": answer.code.name,
    }
    if answer.details:
        status["details"] = list(answer.details)
    return json.dumps({"error": status}).encode()


@attrs.define(eq=False)
class HttpExchange:
    """One request, and the ways to answer it."""

    peer: HttpPeer
    call: SeenCall
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(
        self, status: int, body: bytes, headers: Mapping[str, str] = _JSON, *, cut: int = 0
    ) -> None:
        """Send a reply whose body lacks the last ``cut`` bytes of its Content-Length."""
        phrase = http.HTTPStatus(status).phrase if status != 499 else "Client Closed Request"
        lines = [f"HTTP/1.1 {status} {phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        await self.write("\r\n".join(lines).encode() + body[: len(body) - cut])

    async def write(self, data: bytes) -> None:
        """Send these bytes.

        Raises:
            ConnectionError: The client has disconnected.
        """
        self.writer.write(data)
        await self.writer.drain()

    async def refuse(self, answer: Refuses) -> None:
        """Send an error."""
        body = error_body(answer) if answer.body is None else answer.body
        await self.send(HTTP_STATUSES[answer.code.name], body, {**_JSON, **answer.headers})

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()

    def reset_connection(self) -> None:
        """Reset the connection, so that the client gets an error from its socket."""
        reset_connection(self.writer)

    async def until_gone(self) -> NoReturn:
        """Wait until the client has closed the connection, and raise ConnectionError.

        Raises:
            ConnectionError: The client has disconnected.
        """
        await self.reader.read()
        raise ConnectionResetError


@attrs.define(eq=False)
class HttpPeer:
    """A server for one operation, which answers calls as the script says.

    Use it as an asynchronous context manager.
    """

    name: str
    played: Performance
    elsewhere: str = ""
    """The base URL of another server, for scripts with redirects."""
    listener: PeerListener = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.listener = PeerListener(self._serve, self.played.connect)

    async def __aenter__(self) -> HttpPeer:
        await self.listener.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.listener.__aexit__()

    @property
    def address(self) -> str:
        """The base URL."""
        return f"http://{HOST}:{self.listener.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing() and (request := await read_request(reader)) is not None:
            authorization = request.headers.get("authorization", "")
            verb = request.verb(self.name)
            call, answer = self.played.take(verb, authorization, request.page_token)
            await self._answer(HttpExchange(self, call, reader, writer), answer)
            self.played.answered(call)

    async def _answer(self, exchange: HttpExchange, answer: Answer) -> None:
        match answer:
            case Shows():
                await asyncio.sleep(answer.delay)
                body = json.dumps(answer.operation, ensure_ascii=False).encode()
                await exchange.send(200, body, {**_JSON, **answer.headers})
            case Refuses():
                await exchange.refuse(answer)
            case Lists():
                page: JsonObject = {"operations": list(answer.operations)}
                if answer.next_page_token:
                    page["nextPageToken"] = answer.next_page_token
                await exchange.send(200, json.dumps(page).encode())
            case Acknowledges():
                await exchange.send(200, b"{}")
            case Silent():
                await exchange.until_gone()
            case _:
                await answer(exchange)

"""Calls over HTTP with httpx, or with httpx2, which has the same interface."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Unpack, cast

import httpx

from lro import Code, Operation, Status, TypeRegistry
from lro_client._addresses import public_address
from lro_client._arguments import base_url_of, check_awaits, check_blocks, check_optional
from lro_client._errors import CallError, too_late, unreadable
from lro_client._flow.drivers import CALL_THREADS, AnswerQueue, CallTimedOut, ending_at
from lro_client._flow.steps import Call, Reply
from lro_client.transports._credentials import AsyncSendOptions, Credentials, SendOptions, origin_of
from lro_client.transports._http_coding import HttpCall, HttpCoder, Routes
from lro_client.transports._own_clients import OwnAsyncClient, OwnClient, connections_of
from lro_client.transports._unpacking import KNOWN, UnknownCoding, Unpacking

if TYPE_CHECKING:
    import asyncio

    import httpx2

    HttpClient: TypeAlias = httpx.Client | httpx2.Client
    AsyncHttpClient: TypeAlias = httpx.AsyncClient | httpx2.AsyncClient

__all__ = ["MAX_REPLY", "AsyncHttpTransport", "HttpTransport", "Routes"]

MAX_REPLY: Final = 16 * 1024 * 1024
"""Maximum size of a decompressed reply in bytes. A small body can decompress to gigabytes."""

_READ_RATE: Final = 8e6
"""Bytes of a reply that are decoded per second in the worst case, when all values are tiny."""

_REFUSAL_BYTES: Final = 64 * 1024
_REFUSAL_SECONDS: Final = 5.0

_MAX_HOPS: Final = 5

_CLOSED: Final = Status(Code.CANCELLED, "the client was closed")
_OF_ANOTHER_LOOP: Final = Status(
    Code.FAILED_PRECONDITION,
    "the HTTP client that was given belongs to another event loop: give each loop one of its own,"
    " or a base URL instead",
)


class _Closed(Exception):
    """Raised if the client was closed during a call."""


class HttpTransport:
    """Makes calls with an ``httpx.Client``. With ``own``, ``close()`` closes that client too.

    Without ``client`` it makes a client, and another in each forked process, which must not share
    connections with its parent. ``base_url`` is put before all paths, ``routes`` are the paths of
    the verbs, and ``types`` are the message classes. More options are ``headers``, ``token`` and
    ``auth``, as for :class:`lro_client.Client`. Each call runs in its own thread, because nothing
    else can enforce a time limit.
    """

    bounds = True
    """True: no call takes longer than its budget."""
    batches = True
    """True: the transport supports BatchGet and Watch, which a server may offer (spec §3.11)."""

    def __init__(
        self,
        client: HttpClient | None = None,
        *,
        base_url: str = "",
        routes: Routes | None = None,
        types: TypeRegistry | None = None,
        own: bool = False,
        **options: Unpack[SendOptions],
    ) -> None:
        if client is not None:
            check_blocks("http", client, "httpx.Client()")
        base_url = base_url_of(base_url, client)
        check_optional("routes", routes, Routes)
        check_optional("types", types, TypeRegistry)
        self._plain = _is_plain(base_url)
        where = type(self).__name__
        self._credentials = Credentials(where, options, base_url, client, awaits=False)
        self._made = {} if client is not None else {os.getpid(): self._make_own()}
        self._given = cast("httpx.Client | None", client)
        self.address: str = base_url or str(getattr(client, "base_url", ""))
        self._coder = HttpCoder(
            routes or Routes(), types or TypeRegistry(), base_url=base_url, address=self.address
        )
        self._own = own or client is None
        self._closed = False
        self._asking: set[AnswerQueue] = set()

    def send(self, call: Call) -> Reply:
        """Make a call, and return the server's reply.

        Raises:
            CallError: The call failed.
        """
        asked = _arguments(self._coder.encode(call), call)
        until = time.monotonic() + call.budget
        try:
            exchange = functools.partial(self._exchange, call, asked, until)
            return CALL_THREADS.call(exchange, call.budget, self._asking)
        except CallTimedOut:
            raise too_late(call.verb, call.budget) from None
        except _Closed:
            raise CallError(call.verb, _CLOSED) from None

    def stream(self, call: Call, sink: Callable[[Operation | str | None], object]) -> None:
        """Call ``sink`` with each operation that the server sends, or a missing operation's name.

        ``sink`` gets None for a keep-alive of the server. An exception raised by ``sink`` ends the
        stream. The method returns when the server ends the stream. If the server sends nothing for
        longer than the call's budget, the stream fails.
        """
        asked = _arguments(self._coder.encode(call), call)
        until = time.monotonic() + call.budget
        signed = self._signed(call, asked)
        with self._failures(call, asked), contextlib.ExitStack() as stack:
            with ending_at(until):  # a server may send headers slowly, without end
                response = stack.enter_context(self._answer(signed))
            self._check_open(call)
            if not self._coder.streams(response):
                raise self._coder.no_stream(call, response, _refusal(response))
            events = self._coder.events(call)
            for chunk in _pieces(response):
                event = None
                for event in events.feed(chunk):
                    sink(event)
                if event is None:
                    sink(None)

    def close(self) -> None:
        """End the calls in flight, and close the HTTP client if the transport owns it."""
        self._closed = True
        if self._own:
            self._client.close()
        for answer in list(self._asking):  # the calls' threads may not notice the close
            answer.put((None, _Closed()))

    @property
    def _client(self) -> httpx.Client:
        return self._given or self._own_client.client

    @property
    def _own_client(self) -> OwnClient:
        process = os.getpid()
        # The client of the parent process is kept, because freeing it would close the parent's
        # connections.
        known = self._made.get(process)
        return known or self._made.setdefault(process, self._make_own())

    def _make_own(self) -> OwnClient:
        return OwnClient(self._credentials, plain=self._plain)

    def _signed(self, call: Call, asked: dict[str, Any]) -> dict[str, Any]:
        return self._credentials.signed(call, asked) if self._credentials.any else asked

    def _failures(self, call: Call, asked: dict[str, Any]) -> _Failures:
        return _Failures(self._coder, self._client, call, asked)

    def _answer(self, asked: dict[str, Any]) -> AbstractContextManager[httpx.Response]:
        if self._given is not None:
            return self._given.stream(**_as_given(self._given, asked, self._credentials))
        return contextlib.closing(self._own_client.send(asked))

    def _check_open(self, call: Call) -> None:
        if self._closed and self._own:  # also true in a child that was forked after the close
            raise CallError(call.verb, _CLOSED)
        _check_open(self._client, call)

    def _exchange(self, call: Call, asked: dict[str, Any], until: float) -> Reply:
        hop = 0
        while True:
            hop += 1
            signed = self._signed(call, asked)
            with self._failures(call, asked), ending_at(until), self._answer(signed) as response:
                self._check_open(call)
                there = _redirected(call, asked, response, hop)
                if there is None:
                    content = _read(response, call, until)
                    return self._coder.decode(call, response, content)
            asked = there


class AsyncHttpTransport:
    """Makes calls with an ``httpx.AsyncClient``. The arguments are those of :class:`HttpTransport`.

    Without ``client`` it makes a client for each event loop that uses the transport.
    """

    bounds = False
    batches = True

    def __init__(
        self,
        client: AsyncHttpClient | None = None,
        *,
        base_url: str = "",
        routes: Routes | None = None,
        types: TypeRegistry | None = None,
        own: bool = False,
        **options: Unpack[AsyncSendOptions],
    ) -> None:
        if client is not None:
            check_awaits("http", client, "httpx.AsyncClient()")
        base_url = base_url_of(base_url, client)
        check_optional("routes", routes, Routes)
        check_optional("types", types, TypeRegistry)
        self._plain = _is_plain(base_url)
        where = type(self).__name__
        self._credentials = Credentials(where, options, base_url, client, awaits=True)
        from lro_client._flow.by_loop import ByLoop  # imported late, because by_loop loads asyncio

        ready = self._make_own() if client is None else None
        self._made: ByLoop[OwnAsyncClient] = ByLoop(self._make_own, ready)
        self._given = cast("httpx.AsyncClient | None", client)
        self.address: str = base_url or str(getattr(client, "base_url", ""))
        self._coder = HttpCoder(
            routes or Routes(), types or TypeRegistry(), base_url=base_url, address=self.address
        )
        self._own = own or client is None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # Otherwise the first call would import the module, perhaps for longer than its deadline.
        with contextlib.suppress(ImportError):
            importlib.import_module("anyio._backends._asyncio")

    def _make_own(self) -> OwnAsyncClient:
        make = functools.partial(connections_of, plain=self._plain)
        return OwnAsyncClient(self._credentials, make)

    async def send(self, call: Call) -> Reply:
        """Make a call, and return the server's reply.

        Raises:
            CallError: The call failed.
        """
        asked = _arguments(self._coder.encode(call), call)
        until = time.monotonic() + call.budget
        hop = 0
        while True:
            hop += 1
            async with self._answer(call, asked) as response:
                there = _redirected(call, asked, response, hop)
                if there is None:
                    content = await _aread(response, call)
                    _check_time(call, len(content), until)
                    return self._coder.decode(call, response, content)
            asked = there

    async def stream(self, call: Call, sink: Callable[[Operation | str | None], object]) -> None:
        """Stream operations, as :meth:`HttpTransport.stream` does."""
        import asyncio  # already loaded, since an event loop runs

        asked = _arguments(self._coder.encode(call), call)
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(call.budget):  # a server may send headers without end
                    response = await stack.enter_async_context(self._answer(call, asked))
            except TimeoutError:
                raise too_late(call.verb, call.budget) from None
            if not self._coder.streams(response):
                raise self._coder.no_stream(call, response, await _arefusal(response))
            events = self._coder.events(call)
            async with contextlib.aclosing(_apieces(response)) as chunks:
                async for chunk in chunks:
                    event = None
                    for event in events.feed(chunk):
                        sink(event)
                    if event is None:
                        sink(None)

    async def close(self) -> None:
        """Close the HTTP client if the transport owns it."""
        self._closed = self._own
        if self._own and self._given is not None:
            await self._given.aclose()
        await self._made.end_all(lambda made: made.client.aclose())

    @contextlib.asynccontextmanager
    async def _answer(self, call: Call, asked: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        """Send a request and yield the response. Failures in the block become a CallError."""
        if self._closed:
            raise CallError(call.verb, _CLOSED)
        signed = asked
        if self._credentials.any:
            signed = await self._credentials.asigned(call, asked)
        if self._given is None:
            made = self._made.here()
            with _Failures(self._coder, made.client, call, asked):
                async with contextlib.aclosing(await made.send(signed)) as response:
                    _check_open(made.client, call)
                    yield response
            return
        import asyncio

        given, loop = self._given, asyncio.get_running_loop()
        self._loop = self._loop or loop
        try:
            with _Failures(self._coder, given, call, asked):
                options = _as_given(given, signed, self._credentials)
                async with given.stream(**options) as response:
                    _check_open(given, call)
                    yield response
        except RuntimeError as exc:
            if loop is self._loop:
                raise
            raise CallError(call.verb, _OF_ANOTHER_LOOP) from exc


def _is_plain(base_url: str) -> bool:
    """Return True if the URL does not use TLS."""
    return base_url.startswith("http://")


class _Failures:
    """Turns an exception in its block into a CallError.

    Besides the exceptions of ``coder.raise_failure``, these are an unknown encoding, an expired
    deadline and the use of a closed client.
    """

    __slots__ = ("_asked", "_call", "_client", "_coder")

    def __init__(
        self,
        coder: HttpCoder,
        client: httpx.Client | httpx.AsyncClient,
        call: Call,
        asked: dict[str, Any],
    ) -> None:
        self._coder, self._client, self._call, self._asked = coder, client, call, asked

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, exc: BaseException | None, _trace: object) -> None:
        call = self._call
        if not isinstance(exc, Exception):
            return
        if isinstance(exc, UnknownCoding):
            raise unreadable(call.verb, str(exc)) from exc
        if isinstance(exc, CallTimedOut):
            raise too_late(call.verb, call.budget) from None
        self._coder.raise_failure(call, exc, self._address)
        if isinstance(exc, RuntimeError) and self._client.is_closed:
            raise CallError(call.verb, _CLOSED) from exc

    def _address(self) -> str:
        url: str = self._asked["url"]
        whole = url if "://" in url else str(self._client.base_url).rstrip("/") + url
        return f"{self._asked['method']} {public_address(whole)}"


def _check_open(client: httpx.Client | httpx.AsyncClient, call: Call) -> None:
    """Raise a CallError if the client was closed while the call connected.

    Closing a client does not close a connection that is just being made. Reading the response to
    its end would leave that connection open. Abandoning the response closes it.
    """
    if client.is_closed:
        raise CallError(call.verb, _CLOSED)


def _arguments(asked: HttpCall, call: Call) -> dict[str, Any]:
    found: dict[str, Any] = {"method": asked.method, "url": asked.url, "timeout": call.budget}
    if asked.params:
        found["params"] = dict(asked.params)
    headers = dict(call.headers)
    if asked.body is not None:
        found["content"] = asked.body
        headers["content-type"] = "application/json"
    if headers:
        found["headers"] = headers
    return found


def _as_given(
    client: httpx.Client | httpx.AsyncClient, asked: Mapping[str, Any], credentials: Credentials
) -> Mapping[str, Any]:
    """Return the arguments of a request by an HTTP client that was given.

    The request accepts only the encodings that this module can decode.
    """
    headers = {"accept-encoding": _known_codings(client.headers.get("accept-encoding", ""))}
    found = {**asked, "headers": headers | credentials.headers | asked.get("headers", {})}
    if credentials.any:
        found["follow_redirects"] = False  # it would send the headers to another server, too
    if credentials.auth is not None:
        found["auth"] = credentials.auth
    return found


@functools.lru_cache(maxsize=64)
def _known_codings(accepted: str) -> str:
    names = (name.strip() for name in accepted.split(","))
    known = [name for name in names if name.partition(";")[0].strip().lower() in KNOWN]
    return ", ".join(known) or "identity"


def _read(response: httpx.Response, call: Call, until: float) -> bytes:
    content = bytearray()
    for piece in _pieces(response):
        if time.monotonic() > until:  # a server may send a body slowly, without end
            raise too_late(call.verb, call.budget)
        content += piece
        _check_size(call, len(content))
    _check_time(call, len(content), until)
    return bytes(content)


async def _aread(response: httpx.Response, call: Call) -> bytes:
    content = bytearray()
    async with contextlib.aclosing(_apieces(response)) as chunks:
        async for piece in chunks:
            content += piece
            _check_size(call, len(content))
    return bytes(content)


def _refusal(response: httpx.Response) -> bytes:
    """Read the body of an error response, or the first part of a long body.

    The body of a successful response is not read.
    """
    content, until = bytearray(), time.monotonic() + _REFUSAL_SECONDS
    for piece in () if response.is_success else _pieces(response):
        content += piece
        if len(content) > _REFUSAL_BYTES or time.monotonic() > until:
            break
    return bytes(content)


async def _arefusal(response: httpx.Response) -> bytes:
    import asyncio  # already loaded, since an event loop runs

    content = bytearray()
    if response.is_success:
        return b""
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(_REFUSAL_SECONDS),
            contextlib.aclosing(_apieces(response)) as chunks,
        ):
            async for piece in chunks:
                content += piece
                if len(content) > _REFUSAL_BYTES:
                    break
    return bytes(content)


def _check_size(call: Call, size: int) -> None:
    if size > MAX_REPLY:
        raise unreadable(call.verb, f"the reply is larger than {MAX_REPLY} bytes")


def _check_time(call: Call, size: int, until: float) -> None:
    # Decoding a large reply cannot be interrupted, and blocks every thread.
    if time.monotonic() + size / _READ_RATE > until:
        raise too_late(call.verb, call.budget)


def _unpacking(response: httpx.Response) -> Unpacking | None:
    """Return the decoder of a body, or None if it is not compressed or a hook has read it."""
    codings = response.headers.get("content-encoding", "")
    return Unpacking(codings) if codings and not response.is_stream_consumed else None


def _pieces(response: httpx.Response) -> Iterator[bytes]:
    """Yield the body in pieces, decompressed here because httpx does not limit their size."""
    unpacking = _unpacking(response)
    if unpacking is None:
        yield from response.iter_bytes()
        return
    for chunk in response.iter_raw():
        yield from unpacking.feed(chunk)


async def _apieces(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Yield the body in pieces on an event loop, which can check the deadline after each piece."""
    import asyncio  # already loaded, since an event loop runs

    unpacking = _unpacking(response)
    if unpacking is None:
        async for chunk in response.aiter_bytes():
            yield chunk
        return
    async for chunk in response.aiter_raw():
        for piece in unpacking.feed(chunk):
            yield piece
            await asyncio.sleep(0)


def _redirected(
    call: Call, asked: Mapping[str, Any], response: Any, hops: int
) -> dict[str, Any] | None:
    """Return the request to make after a redirect, or None if the response is the final one.

    Raises:
        CallError: The target has another origin, which must not get the credentials, or there were
            too many redirects. ``hops`` is the number of redirects so far.
    """
    status = response.status_code
    repeats = status in (307, 308) or (status in (301, 302, 303) and asked["method"] == "GET")
    target = response.headers.get("location") if repeats else None
    if not target:
        return None
    there, text = response.url.join(target), ""
    old, new = public_address(str(response.url)), public_address(str(there))
    if origin_of(there) != origin_of(response.url):
        text = f"{old} redirects to another origin, {new}, which is not followed"
    elif hops > _MAX_HOPS:
        text = f"more than {_MAX_HOPS} redirections, the last one to {new}"
    if text:
        raise CallError(call.verb, Status(Code.FAILED_PRECONDITION, text), status)
    kept = {key: value for key, value in asked.items() if key != "params"}
    return {**kept, "url": str(there)}

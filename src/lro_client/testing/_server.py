"""A server in memory, with the interface of AIP-151, whose operations follow a test's script.

The server is this library's own HTTP edge with a service in memory, a virtual clock and faults.
Its lists, filters, checks and errors are those of the library. Time passes only on the virtual
clock, so Wait and Watch poll the store instead of subscribing to it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypedDict, Unpack

import httpx

import lro
from lro import DeclarationError, Empty, Method, Operation, Service, Status, Struct, TypeRegistry
from lro.errors import OperationNotFound
from lro.executors.inline import InlineExecutor
from lro.http import (
    Exchange,
    HttpReply,
    HttpRequest,
    InThreads,
    OperationsEdge,
    Start,
    Wait,
    Watch,
    json_reply,
    run,
)
from lro.types import Json
from lro.wire import code_from_http, dumps, error_body, operation_to_json
from lro_client._client.async_client import AsyncClient
from lro_client._client.client import Client
from lro_client.testing._clock import VirtualClock
from lro_client.testing._script import Fault, Rule, Script, Scripted, ScriptedStore, ServerCall

_VERBS: Final = {
    ("POST", "wait"): "WaitOperation",
    ("POST", "cancel"): "CancelOperation",
    ("POST", "batchGet"): "BatchGetOperations",
    ("POST", "watch"): "WatchOperations",
    ("GET", "watch"): "WatchOperations",
    ("DELETE", ""): "DeleteOperation",
    ("GET", ""): "GetOperation",
}
_STEP_SECONDS: Final = 1.0
"""Seconds between two reads of the store by a stream or a short Wait."""

_MAX_LOOKS: Final = 4
"""Number of reads of the store during a long Wait, after the first read."""

_HEARTBEAT_SECONDS: Final = 15.0

Answering: TypeAlias = Generator[float, None, httpx.Response]
"""A generator that yields the seconds that pass before a response, and returns the response."""


class UnscriptedCall(AssertionError):
    """Raised for a call of an unknown verb, or of a method without a script."""


class Verbs(TypedDict, total=False):
    """Verbs that a server can have or lack."""

    wait: bool
    lists: bool
    batch_get: bool
    watch: bool


_OFFERED: Final[Verbs] = {"wait": True, "lists": True}
_RPCS: Final = {
    "wait": "WaitOperation",
    "lists": "ListOperations",
    "batch_get": "BatchGetOperations",
    "watch": "WatchOperations",
}


class ScriptedServer:
    """A server in memory, on a virtual clock, whose operations follow a script.

    The server has the verbs of the interface. The verbs ``wait`` and ``lists`` can be left out, and
    the extensions ``batch_get`` and ``watch`` can be added (spec §3.11). A Wait is held at most
    ``max_hold`` seconds. Every call takes ``latency`` seconds. ``types`` are known message classes,
    and the classes of the scripted messages are added to them. ``calls`` has all calls that the
    server received.
    """

    def __init__(
        self,
        clock: VirtualClock | None = None,
        *,
        url: str = "http://scripted.test",
        max_hold: float = 60.0,
        latency: float = 0.0,
        types: TypeRegistry | None = None,
        **verbs: Unpack[Verbs],
    ) -> None:
        self.clock: VirtualClock = clock or VirtualClock()
        self.url = url
        self.calls: list[ServerCall] = []
        self.transport: ScriptedTransport = ScriptedTransport(self.clock, self._answer)
        self._max_hold = max_hold
        self._latency = latency
        self._began = self.clock.now
        self._rules: list[Rule] = []
        self._store = ScriptedStore(self.clock, self._packed)
        if unknown := verbs.keys() - _RPCS.keys():
            raise TypeError(f"a scripted server has no option {min(unknown)!r}")
        offered = [_RPCS[name] for name, has in {**_OFFERED, **verbs}.items() if has]
        self._service = Service(
            self._store,
            InlineExecutor(),
            types=types,
            verbs={"CancelOperation", "DeleteOperation", *offered},
            max_wait=timedelta(0),
            maintenance=False,
            clock=self.clock,
        )
        self._known: set[type] = set()
        self._parents: set[str] = set()
        self._edge = OperationsEdge(self._service)
        self._starts: dict[str, Method[Struct, Empty, Empty]] = {}

    def operation(
        self,
        name: str,
        *,
        ends_after: float | None = 0.0,
        response: Scripted | None = None,
        metadata: Scripted | Callable[[float], Scripted | None] | None = None,
        error: Status | None = None,
        gone_after: float = math.inf,
        cancels_after: float | None = 0.0,
        retry_after: str = "",
    ) -> None:
        """Add an operation that begins now and ends ``ends_after`` seconds later (None: never).

        The operation ends with ``response`` or ``error``, or with neither. ``metadata`` is a
        message, or a function that makes a message from the run time in seconds. The operation is
        gone after ``gone_after`` seconds. A cancelled operation ends ``cancels_after`` seconds
        later (None: it continues). Replies about an operation in progress have the header
        ``retry_after``.

        Raises:
            EncodingError, DeclarationError: A message cannot be sent.
        """
        script = self._script(
            name,
            ends_after=ends_after,
            response=response,
            metadata=metadata,
            error=error,
            gone_after=gone_after,
            cancels_after=cancels_after,
            retry_after=retry_after,
        )
        self._serve(name)
        self._store.add(script)

    def method(
        self,
        target: str,
        *,
        parent: str = "",
        response: Scripted | Callable[[dict[str, Any]], Scripted] | None = None,
        **script: Any,
    ) -> None:
        """Add a method at this path. Each start begins an operation with the script given here.

        Operations are named ``operations/1``, ``operations/2`` and so on, below ``parent`` if it is
        set. ``response`` may be a function of the request's JSON. The other arguments are as for
        :meth:`operation`. Starts with the same request id begin only one operation (spec §9.1).
        """
        collection = f"{parent}/operations" if parent else "operations"
        self._serve(f"{collection}/-")

        def begin(request: lro.AnyMessage) -> Script:
            fields = dict(self._service.types.unpack(request, Struct).fields)
            made = response(fields) if callable(response) else response
            return self._script(self._store.free_name(collection), response=made, **script)

        full_name = f"scripted.Methods.M{len(self._store.methods) + 1}"
        method = self._service.declare(full_name, request=Struct, response=Empty, metadata=Empty)
        self._store.methods[full_name] = begin
        starts = {**self._starts, target: method}
        self._edge = self._edge_of(self._parents, starts)
        self._starts = starts

    def fault(
        self,
        fault: Fault,
        *,
        verb: str = "",
        calls: Collection[int] | None = None,
        since: float = 0.0,
        until: float = math.inf,
    ) -> None:
        """Make calls of ``verb``, by default of all verbs, fail.

        ``calls`` has the numbers of the calls that fail, by default of all calls. The number 1 is
        the first call of the verb. ``since`` and ``until`` are in seconds after the server was
        made. If several faults apply to a call, the first one happens.
        """
        self._rules.append(Rule(fault=fault, verb=verb, calls=calls, since=since, until=until))

    def client(self, **options: Any) -> Client:
        """Return a client of this server, on its clock, with these ``options``."""
        options.setdefault("http", httpx.Client(transport=self.transport))
        options = {"clock": self.clock, "sleep": self.clock.sleep, **options}
        return Client(self.url, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """Return a client of this server for event loops, like :meth:`client`."""
        options.setdefault("http", httpx.AsyncClient(transport=self.transport))
        options = {"clock": self.clock, "sleep": self.clock.asleep, **options}
        return AsyncClient(self.url, **options)

    # -- scripts ------------------------------------------------------------------------------

    def _script(self, name: str, *, response: Scripted | None = None, **script: Any) -> Script:
        return Script(name=name, began=self.clock.now, response=self._packed(response), **script)

    def _packed(self, message: Scripted | None) -> lro.AnyMessage | None:
        types = self._service.types
        if message is None:
            return None
        if isinstance(message, dict):
            fields: dict[str, Json] = message
            return types.from_json(fields)
        cls = type(message)
        if cls is not lro.AnyMessage and cls not in self._known:
            self._known.add(cls)  # so that filters know the fields of the class
            name = f"scripted.Messages.M{len(self._known)}"
            self._service.declare(name, request=Struct, response=cls, metadata=cls)
        return types.pack(message)

    def _serve(self, name: str) -> None:
        """Add routes for the operations below this name's parent."""
        segments = name.rpartition("/operations/")[0].split("/")
        parent = "/".join("*" if place % 2 else one for place, one in enumerate(segments))
        if parent and parent not in self._parents:
            with contextlib.suppress(DeclarationError):  # with an invalid parent, no name is valid
                self._edge = self._edge_of({*self._parents, parent}, self._starts)
                self._parents.add(parent)

    def _edge_of(
        self, parents: Collection[str], starts: Mapping[str, Method[Struct, Empty, Empty]]
    ) -> OperationsEdge:
        # Google's services accept fields of some starts in the query, which are ignored here.
        served = {path: Start(method, parent=_no_parent) for path, method in starts.items()}
        return OperationsEdge(self._service, parents=[*parents], starts=served)

    # -- calls --------------------------------------------------------------------------------

    def _answer(self, request: httpx.Request) -> Answering:
        verb, name = self._called(request)
        call = ServerCall(at=self.clock.now - self._began, verb=verb, name=name)
        fault = next((r.fault for r in self._rules if r.applies(call, self.calls)), Fault())
        self.calls.append(call)
        until = self.clock.now + (request.extensions["timeout"].get("read") or math.inf)
        answering = self._act(call, request, fault)
        while True:
            try:
                seconds = next(answering)
            except StopIteration as end:
                response: httpx.Response = end.value
                call.status = response.status_code
                return response
            left = until - self.clock.now
            if seconds > left:  # the client gives up first
                yield left
                raise httpx.ReadTimeout("scripted: no answer in time", request=request)
            yield seconds

    def _called(self, request: httpx.Request) -> tuple[str, str]:
        """Return the verb of a request, and its operation name or target.

        Raises:
            UnscriptedCall: The verb or the method does not exist.
        """
        path, method = request.url.path, request.method
        if method == "POST" and path in self._starts:
            return "Start", path
        _, _, rest = path.removeprefix("/").partition("/")  # without /v1 or another prefix
        name, _, custom = rest.partition(":")
        verb = _VERBS.get((method, custom))
        if verb is None or not name:
            known = ", ".join(self._starts) or "none"
            raise UnscriptedCall(
                f"{method} {path} is not a call of the interface; methods: {known}"
            )
        if verb == "GetOperation" and name.rpartition("/")[2] == "operations":
            return "ListOperations", name
        return verb, name

    def _act(self, call: ServerCall, request: httpx.Request, fault: Fault) -> Answering:
        yield self._latency + fault.seconds
        if fault.error is not None:
            raise fault.error(f"scripted: {call.verb} of {call.name}")
        if fault.body is not None:
            status = fault.status or 200
            return httpx.Response(status, headers=dict(fault.headers), content=fault.body)
        if fault.status is not None:
            scripted = Status(code_from_http(fault.status), "scripted")
            body = error_body(scripted, self._service.types, fault.status)
            response = _response(json_reply(fault.status, body))
        else:
            response = yield from self._serve_call(call, request)
        response.headers.update(fault.headers)
        if fault.keep is not None:
            kind = {"content-type": response.headers["content-type"]}
            content = response.content[: fault.keep]
            response = httpx.Response(response.status_code, headers=kind, content=content)
        return response

    def _serve_call(self, call: ServerCall, request: httpx.Request) -> Answering:
        """Return the edge's response to a call without a fault."""
        raw, _, query = request.url.raw_path.decode("ascii").partition("?")
        asked = HttpRequest(
            method=request.method,
            path=raw
            if call.name in self._starts
            else "/v1/" + raw.removeprefix("/").partition("/")[2],
            query=query,
            headers=dict(request.headers),
            body=request.content,
        )
        many = call.verb in ("ListOperations", "BatchGetOperations")
        self._store.play(*() if many else (call.name,))
        reply = yield from self._follow(call, self._edge.exchange(asked))
        failure, self._store.failure = self._store.failure, None
        if failure is not None:  # raised to the test, not sent to the client under test
            raise failure
        if call.verb == "CancelOperation":
            self._store.play(call.name)
        if isinstance(reply, Watch):
            names, kind = reply.names, {"content-type": "text/event-stream"}
            stream = ScriptedStream(self.clock, lambda: self._watch(names))
            return httpx.Response(200, headers=kind, stream=stream)
        response = _response(reply)
        if response.is_success and response.headers.pop("retry-after", ""):
            script = self._store.script(response.json()["name"])
            if script.retry_after:
                response.headers["retry-after"] = script.retry_after
        return response

    def _follow(
        self, call: ServerCall, exchange: Exchange
    ) -> Generator[float, None, HttpReply | Watch]:
        """Return the reply of an exchange, or its Watch step, which needs an event loop."""
        try:
            step = next(exchange)
            while not isinstance(step, Watch):
                try:
                    if isinstance(step, Wait):
                        done = yield from self._hold(call, step)
                    else:  # the step runs in this thread
                        done = run(step.flow) if isinstance(step, InThreads) else step.take()
                except Exception as exc:
                    step = exchange.throw(exc)
                else:
                    step = exchange.send(done)
            return step
        except StopIteration as end:
            reply: HttpReply = end.value
            return reply

    def _hold(self, call: ServerCall, wait: Wait) -> Generator[float, None, Operation]:
        """Let the time of a Wait pass, and return the operation's state."""
        name, timeout = wait.request.name, wait.request.timeout
        call.hold = None if timeout is None else timeout.total_seconds
        left = min(self._max_hold if call.hold is None else call.hold, self._max_hold)
        step = max(_STEP_SECONDS, left / _MAX_LOOKS)
        while True:
            self._store.play(name)
            found = self._service.wait(name, timeout, deadline_seconds=wait.deadline_seconds)
            if found.done or left <= 0:
                return found
            seconds = min(left, step, self._store.script(name).changes(self.clock.now))
            yield seconds
            left -= seconds

    def _watch(self, names: Collection[str]) -> Iterator[bytes | float]:
        """Yield the events of a stream, and the seconds between them."""
        watched: dict[str, Operation | None] = dict.fromkeys(names)
        quiet = 0.0
        while watched:
            step = _STEP_SECONDS
            for name, before in list(watched.items()):
                self._store.play(name)
                try:
                    state = self._service.get(name)
                except OperationNotFound:
                    yield _event("missing", {"name": name})
                    del watched[name]
                    continue
                if state != before:
                    yield _event("operation", operation_to_json(state, self._service.types))
                    quiet, watched[name] = 0.0, state
                if state.done:
                    del watched[name]
                step = min(step, self._store.script(name).changes(self.clock.now))
            if quiet >= _HEARTBEAT_SECONDS:
                yield b":\n\n"
                quiet = 0.0
            quiet += step
            if watched:
                yield step


class ScriptedStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in pieces: ``pieces`` yields them, and the seconds between them."""

    def __init__(self, clock: VirtualClock, pieces: Callable[[], Iterator[bytes | float]]) -> None:
        self._clock = clock
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces():
            if isinstance(piece, bytes):
                yield piece
            else:
                self._clock.advance(piece)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces():
            if isinstance(piece, bytes):
                yield piece
            else:
                await self._clock.aadvance(piece)


class ScriptedTransport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Passes requests to a function that responds, and lets the time of the responses pass."""

    def __init__(self, clock: VirtualClock, answer: Callable[[httpx.Request], Answering]) -> None:
        self._clock = clock
        self._answer = answer

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Return the response for a blocking client."""
        request.read()
        answering = self._answer(request)
        try:
            while True:
                self._clock.advance(next(answering))
        except StopIteration as end:
            response: httpx.Response = end.value
            return response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the response for a client on an event loop."""
        await request.aread()
        answering = self._answer(request)
        while True:
            try:
                seconds = next(answering)
            except StopIteration as end:
                response: httpx.Response = end.value
                return response
            await self._clock.aadvance(seconds)


def _no_parent(_: HttpRequest) -> str:
    """Return no parent. A start that has a parent function accepts any query."""
    return ""


def _response(reply: HttpReply) -> httpx.Response:
    if reply.reserved is not None:
        reply.reserved.release()
    return httpx.Response(reply.status, headers=dict(reply.headers), content=reply.body)


def _event(kind: str, value: dict[str, Json]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + dumps(value) + b"\n\n"

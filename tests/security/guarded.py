"""A service behind each kind of edge, with hooks that a test controls."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.longrunning.operations_proto_pb2")

import grpc
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf.duration_pb2 import Duration

import lro
import lro.asgi
import lro.wsgi
from lro.http import OperationsEdge
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.grpc.serving import serving
from tests.http.counting_service import CountService, build
from tests.http.test_asgi import Line, part, scope_of
from tests.waiting import PATIENCE

START: Final = "acme.v1.Things.Count"
FIVE: Final = (
    "GetOperation",
    "ListOperations",
    "DeleteOperation",
    "CancelOperation",
    "WaitOperation",
)
BATCHES: Final = ("BatchGetOperations", "FullBatch")
VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "asgi": (*FIVE, *BATCHES, "WatchOperations", "WatchMany", START),
    "wsgi": (*FIVE, *BATCHES, START),
    "grpc": (*FIVE, START),
    "grpc.aio": (*FIVE, START),
}
"""The verbs of each edge: WSGI has no streams, and gRPC has only the standard verbs (§3.11)."""

STORES: Final[Mapping[str, Callable[[Path], Any]]] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda folder: SQLiteStore(folder / "operations.db"),
}


@attrs.define
class Script:
    """The current behaviour of the hooks; a test changes it between calls."""

    authenticate: Callable[[Mapping[str, str]], Any] = lambda headers: headers["x-caller"]
    authorize: Callable[[str, str, str], Any] = lambda caller, verb, name: None
    staff: Callable[[str], Any] = lambda caller: caller == "sam"


class _Plain:
    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._act(*args, **kwargs)

    method = __call__


class _Async:
    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return self._act(*args, **kwargs)

    method = __call__


def _function(act: Callable[..., Any]) -> Callable[..., Any]:
    def hook(*args: Any) -> Any:
        return act(*args)

    return hook


def _coroutine_function(act: Callable[..., Any]) -> Callable[..., Any]:
    async def hook(*args: Any) -> Any:
        return act(*args)

    return hook


Kind = Callable[[Callable[..., Any]], Callable[..., Any]]

PLAIN: Final[Mapping[str, Kind]] = {
    "function": _function,
    "object": _Plain,
    "method": lambda act: _Plain(act).method,
    "partial": lambda act: functools.partial(_function(act)),
}
ASYNC: Final[Mapping[str, Kind]] = {
    "coroutine function": _coroutine_function,
    "async object": _Async,
    "async method": lambda act: _Async(act).method,
    "async partial": lambda act: functools.partial(_coroutine_function(act)),
    "partial of async object": lambda act: functools.partial(_Async(act)),
}
KINDS: Final[Mapping[str, Kind]] = {**PLAIN, **ASYNC}

PLACES: Final = [
    (edge, kind)
    for edge in VERBS
    for kind in KINDS
    if kind in PLAIN or edge in ("asgi", "grpc.aio")
]
"""Each edge with each kind of hook that it accepts."""


@attrs.frozen
class Answer:
    """What a caller received: the code, and the whole reply as text."""

    code: lro.Code
    text: str


@attrs.frozen
class Place:
    """A service behind an edge with hooks; call ``call`` with a verb, a name and a caller."""

    counting: CountService
    script: Script
    verbs: tuple[str, ...]
    call: Callable[..., Answer]

    def start(self, caller: str = "ann") -> str:
        """Start an operation and return its name."""
        answer = self.call(START, "", caller)
        assert answer.code is lro.Code.OK, answer
        found = re.search(r"operations/[\w-]+", answer.text)
        assert found
        return found[0]

    def call_with(self, hook: str, act: Callable[[], Any], verb: str, name: str) -> Answer:
        """Return the answer to a call during which ``hook`` runs ``act``."""
        usual = getattr(self.script, hook)
        setattr(self.script, hook, lambda *_: act())
        try:
            return self.call(verb, name)
        finally:
            setattr(self.script, hook, usual)


def http_request(verb: str, name: str) -> tuple[str, str, bytes]:
    """Return the HTTP method, path and body of a call."""
    names = json.dumps({"names": [name]}).encode()
    wait = b'{"timeout": "0s"}'
    return {
        "GetOperation": ("GET", f"/v1/{name}", b""),
        "ListOperations": ("GET", "/v1/operations", b""),
        "DeleteOperation": ("DELETE", f"/v1/{name}", b""),
        "CancelOperation": ("POST", f"/v1/{name}:cancel", b""),
        "WaitOperation": ("POST", f"/v1/{name}:wait", wait),
        "BatchGetOperations": ("POST", "/v1/operations:batchGet", names),
        "FullBatch": ("POST", "/v1/operations:batchGet?view=FULL", names),
        "WatchOperations": ("GET", f"/v1/{name}:watch", b""),
        "WatchMany": ("POST", "/v1/operations:watch", names),
        START: ("POST", "/v1/count", b'{"steps": 1}'),
    }[verb]


def grpc_request(verb: str, name: str) -> tuple[str, bytes]:
    """Return the gRPC path and serialized message of a call."""
    if verb == START:
        return "/acme.v1.Things/Count", b""
    fields: dict[str, Any] = {} if verb == "ListOperations" else {"name": name}
    if verb == "WaitOperation":
        fields["timeout"] = Duration()
    message = getattr(pb, f"{verb}Request")(**fields)
    return f"/google.longrunning.Operations/{verb}", message.SerializeToString()


def answer_of(status: int, body: bytes) -> Answer:
    """Return the answer that an HTTP reply contains."""
    text = body.decode()
    code = lro.Code.OK if status == 200 else lro.Code[json.loads(text)["error"]["status"]]
    return Answer(code, text)


async def ask_asgi(app: Any, verb: str, name: str, caller: str = "ann", receive: Any = None) -> Any:
    """Call an ASGI application as a server would; return None if it sends no reply."""
    method, path, body = http_request(verb, name)
    line = Line([part(body)], receive)
    scope = scope_of(method, path, headers=[(b"x-caller", caller.encode())])
    await app(scope, line.receive, line.send)
    if not line.sent:
        return None
    return answer_of(
        line.sent[0]["status"], b"".join(one.get("body", b"") for one in line.sent[1:])
    )


def edge_of(counting: CountService, **options: Any) -> OperationsEdge:
    """Make an edge of the service with a route that starts its method."""
    return OperationsEdge(counting.service, starts={"/v1/count": counting.count}, **options)


def asgi_app(counting: CountService, **options: Any) -> Any:
    return lro.asgi.OperationsApp(counting.service, starts={"/v1/count": counting.count}, **options)


def wsgi_app(counting: CountService, **options: Any) -> Any:
    return lro.wsgi.OperationsApp(counting.service, starts={"/v1/count": counting.count}, **options)


@contextlib.contextmanager
def _asgi(counting: CountService, authenticate: Any) -> Iterator[Callable[..., Answer]]:
    app = asgi_app(counting, authenticate=authenticate)
    with asyncio.Runner() as runner:
        yield lambda *args: runner.run(ask_asgi(app, *args))


@contextlib.contextmanager
def _wsgi(counting: CountService, authenticate: Any) -> Iterator[Callable[..., Answer]]:
    app = wsgi_app(counting, authenticate=authenticate)
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://here") as client:

        def call(verb: str, name: str, caller: str = "ann") -> Answer:
            method, path, body = http_request(verb, name)
            reply = client.request(method, path, content=body, headers={"x-caller": caller})
            return answer_of(reply.status_code, reply.content)

        yield call


@contextlib.contextmanager
def _grpc(kind: str, counting: CountService, authenticate: Any) -> Iterator[Callable[..., Answer]]:
    with (
        serving(kind, counting.service, authenticate=authenticate) as address,
        grpc.insecure_channel(address) as channel,
    ):

        def call(verb: str, name: str, caller: str = "ann") -> Answer:
            path, message = grpc_request(verb, name)
            rpc: Any = channel.unary_unary(path)
            try:
                reply = rpc(message, metadata=[("x-caller", caller)], timeout=PATIENCE)
            except grpc.RpcError as exc:
                error: Any = exc
                text = f"{error.details()} {error.trailing_metadata()}"
                return Answer(lro.Code(error.code().value[0]), text)
            return Answer(lro.Code.OK, str(reply))

        yield call


SERVED: Final[Mapping[str, Callable[[CountService, Any], Any]]] = {
    "asgi": _asgi,
    "wsgi": _wsgi,
    "grpc": functools.partial(_grpc, "threads"),
    "grpc.aio": functools.partial(_grpc, "asyncio"),
}


@contextlib.contextmanager
def guarded(edge: str, kind: str, store: str, folder: Path, **options: Any) -> Iterator[Place]:
    """Serve a service behind this edge, with hooks of this kind; Sam is ``staff`` if it is True."""
    script, make = Script(), KINDS[kind]
    if options.pop("staff", False):
        options |= {"owner_only": True, "staff": make(lambda caller: script.staff(caller))}
    counting = build(
        STORES[store](folder),
        authorize=make(lambda *question: script.authorize(*question)),
        **options,
    )
    hook = make(lambda headers: script.authenticate(headers))
    with counting.service, SERVED[edge](counting, hook) as call:
        yield Place(counting, script, VERBS[edge], call)


class Saying(lro.StatusError):
    """An error with this text, code and details; if one of them is an exception, it is raised."""

    def __init__(self, **says: Any) -> None:
        super().__init__(lro.Code.NOT_FOUND, "s3cret")
        self.says = says

    def _say(self, what: str, usual: Any) -> Any:
        said = self.says.get(what, usual)
        if isinstance(said, BaseException):
            raise said
        return said

    def __str__(self) -> str:
        return str(self._say("text", self.message))

    @property
    def status_code(self) -> Any:
        return self._say("code", self.chosen)

    def details(self, domain: str) -> Any:
        return self._say("details", super().details(domain))


UNREADABLE: Final[Mapping[str, Callable[[], lro.LroError]]] = {
    "details exit": lambda: Saying(details=SystemExit()),
    "details close a coroutine": lambda: Saying(details=GeneratorExit()),
    "details fail": lambda: Saying(details=ValueError()),
    "details are no messages": lambda: Saying(details=(object(),)),
    "details are no list": lambda: Saying(details=7),
    "code exits": lambda: Saying(code=SystemExit()),
    "code fails": lambda: Saying(code=ValueError()),
    "code is no number": lambda: Saying(code="NOT_FOUND"),
    "code is no Code": lambda: Saying(code=99),
    "code is None": lambda: Saying(code=None),
    "text exits": lambda: Saying(text=SystemExit()),
    "text fails": lambda: Saying(text=ValueError()),
}
"""Errors that an application may raise although their text, code or details are unusable."""

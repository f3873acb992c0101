"""A service with one method for the tests of edges; each test completes its operations."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

import lro
from lro.executors.inline import InlineExecutor
from lro.http import HttpReply, HttpRequest, OperationsEdge
from lro.stores.memory import MemoryStore

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
DOMAIN = "acme.example"
URL = "type.googleapis.com/"


class Phase(enum.Enum):
    """An enum without numbers of its own, so that QUEUED is 0."""

    QUEUED = "queued"
    COUNTING = "counting"


class Quality(enum.IntEnum):
    """An enum with its own numbers, and an alias."""

    UNSET = 0
    GOOD = 10
    FINE = 10


@lro.message("acme.v1.CountRequest")
@attrs.frozen
class CountRequest:
    """A request to count some steps."""

    steps: lro.Int32 = 0
    label: str = ""


@lro.message("acme.v1.CountMetadata")
@attrs.frozen
class CountMetadata:
    """The progress of the counting."""

    percent: lro.Int32 = 0
    phase: Phase = Phase.QUEUED


@lro.message("acme.v1.CountResponse")
@attrs.frozen
class CountResponse:
    """The result of the counting."""

    total: lro.Int32 = 0
    quality: Quality = Quality.UNSET


@attrs.define
class CountService:
    """A service and its only method."""

    service: lro.Service
    count: lro.Method[CountRequest, CountResponse, CountMetadata]

    def declare(self, name: str, **more: Any) -> lro.Method[Any, CountResponse, CountMetadata]:
        """Declare another method, by default with the same message classes."""
        kinds = {"request": CountRequest, "response": CountResponse, "metadata": CountMetadata}
        return self.service.declare(name, **{**kinds, **more})

    def start(self, parent: str = "", **options: Any) -> str:
        """Start an operation and return its name."""
        return self.count.start(CountRequest(steps=3), parent=parent, **options).name

    def finish(self, name: str, total: int = 3) -> None:
        """Complete an operation."""
        assert self.service.reporter(name).complete(CountResponse(total=total))


def build(store: Any = None, **options: Any) -> CountService:
    """Make a counting service with a stopped clock and without maintenance."""
    options.setdefault("domain", DOMAIN)
    service = lro.Service(
        store or MemoryStore(lambda: NOW), InlineExecutor(), maintenance=False, **options
    )
    count = service.declare(
        "acme.v1.Things.Count", request=CountRequest, response=CountResponse, metadata=CountMetadata
    )
    return CountService(service, count)


def begun(*where: str, **options: Any) -> tuple[CountService, str]:
    """Make a counting service and start an operation with these arguments; return both."""
    counting = build()
    return counting, counting.start(*where, **options)


def edge_of(counting: CountService, **options: Any) -> OperationsEdge:
    """Make an edge that also serves operations below ``projects/*``."""
    return OperationsEdge(counting.service, parents=["projects/*"], **options)


class Wrapped:
    """A store that calls a function before each of the named methods, to inject faults."""

    def __init__(self, before: Callable[[], None], *verbs: str) -> None:
        self._store = MemoryStore(lambda: NOW)
        self._before = before
        self._verbs = verbs

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name not in self._verbs:
            return real

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self._before()
            return real(*args, **kwargs)

        return wrapped


def ask(method: str, target: str, body: bytes | object = b"", **headers: str) -> HttpRequest:
    """Make a request; a body other than bytes becomes JSON; ``_`` in header names becomes ``-``."""
    path, _, query = target.partition("?")
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest(method=method, path=path, query=query, headers=named, body=raw)


def headers_of(reply: HttpReply) -> Mapping[str, str]:
    """Return the headers of a reply, after checking that each occurs once."""
    headers = dict(reply.headers)
    assert len(headers) == len(reply.headers)
    return headers


def details_of(body: bytes | Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return an error body's details by simple type name, after checking that each is unique."""
    value = json.loads(body) if isinstance(body, bytes) else body
    listed = value["error"]["details"]
    found = {detail["@type"].removeprefix(URL + "google.rpc."): detail for detail in listed}
    assert len(found) == len(listed)
    assert found["ErrorInfo"]["domain"] == DOMAIN
    return found


def check_error(reply: HttpReply, http: int, code: lro.Code, reason: str) -> dict[str, Any]:
    """Check what all error replies must contain (§5.12, §5.14, §6.3); return the error object."""
    assert (reply.status, headers_of(reply)["content-type"]) == (
        http,
        "application/json; charset=utf-8",
    )
    assert headers_of(reply)["cache-control"] == "no-store"
    assert headers_of(reply)["x-content-type-options"] == "nosniff"
    value = json.loads(reply.body)
    assert list(value) == ["error"]
    error: dict[str, Any] = value["error"]
    assert list(error) == ["code", "message", "status", "details"]
    assert (error["code"], error["status"]) == (http, code.name)
    assert error["message"]
    details = details_of(value)
    assert details["ErrorInfo"]["reason"] == reason
    assert ("BadRequest" in details) == (code is lro.Code.INVALID_ARGUMENT)
    retryable = code in (lro.Code.UNAVAILABLE, lro.Code.RESOURCE_EXHAUSTED)
    assert ("RetryInfo" in details) == ("retry-after" in headers_of(reply)) == retryable
    return error

"""The service that each integration under test serves, and the server around it.

A framework's test module serves an application as :class:`Served` and imports the tests of
:mod:`tests.integrations.checks`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any

import attrs
import httpx
import pytest

import lro
from lro.asgi import OperationsApp
from lro.console import Console
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from tests.http.counting_service import DOMAIN, CountMetadata, CountRequest, CountResponse
from tests.http.servers import HOST, uvicorn_serving

START, OWN = "/v1/things:count", "/v1/shelves/a/things:count"
BOX = "/v1/boxes/{label}:count"
CONSOLE = Console("/console", title="Counts", actions=("cancel",))
PARENTS: Any = {"parents": ["projects/*"]}
OPTIONS: Any = {**PARENTS, "console": CONSOLE}
"""Options that every integration under test gets."""
TOKENS = {"Bearer a1": "ann", "Bearer b2": "bob"}
ANN, BOB = ({"authorization": token} for token in TOKENS)


def name_of(authorization: str | None) -> str:
    """Return the name of the caller with this token."""
    caller = TOKENS.get(authorization or "")
    if caller is None:
        raise lro.errors.Unauthenticated("a token is needed")
    return caller


def reason(reply: Any, status: int) -> str:
    """Check the status code of an error reply and return the reason in its details."""
    assert reply.status_code == status, reply.text
    return str(reply.json()["error"]["details"][0]["reason"])


CHALLENGE = {"WWW-Authenticate": "Basic"}


def refused(headers: Any) -> int:
    """Return the status that these headers ask ``caller`` to raise, or 0 for no exception."""
    return int(headers.get("x-refuse", 0))


def authorize(caller: str, verb: str, name: str) -> bool:
    """Allow everything except a delete by Bob."""
    return not (caller == "bob" and verb == "DeleteOperation")


@attrs.frozen
class Counting:
    """A service, its three methods, and an event that work may wait for."""

    service: lro.Service
    count: lro.Method[CountRequest, CountResponse, CountMetadata]
    box: lro.Method[CountRequest, CountResponse, CountMetadata]
    name: lro.Method[lro.Struct, lro.types.StringValue, lro.Struct]
    go: threading.Event = attrs.field(factory=threading.Event)
    """Work with negative ``steps`` waits for this event."""

    @property
    def starts(self) -> dict[str, Any]:
        """The methods by path, for the option ``starts`` of an edge."""
        return {START: self.count, BOX: self.box}


def build(store: Any = None, **options: Any) -> Counting:
    """Make a counting service, in memory unless another store is given."""
    go = threading.Event()
    service = lro.Service(
        store or MemoryStore(),
        ThreadExecutor(),
        domain=DOMAIN,
        **{"owner_only": True, "authorize": authorize, **options},
    )

    @service.method("acme.v1.Things.Count", path=START)
    def count(request: CountRequest, job: lro.Job[CountMetadata]) -> CountResponse:
        job.report(CountMetadata(percent=50))
        if request.steps < 0:
            go.wait(60)
        return CountResponse(total=request.steps)

    @service.method("acme.v1.Things.CountBox", path=BOX)
    def box(request: CountRequest, job: lro.Job[CountMetadata]) -> CountResponse:
        return CountResponse(total=len(request.label))

    @service.method("acme.v1.Things.Name")
    def name(request: lro.Struct, job: lro.Job[lro.Struct]) -> lro.types.StringValue:
        job.report(lro.Struct({"percent": 50}))
        return lro.types.StringValue("ann")

    return Counting(service, count, box, name, go)


@attrs.frozen
class Served:
    """An application behind a server, and for comparison an edge without a framework."""

    counting: Counting
    http: httpx.Client
    plain: httpx.Client
    unnamed: httpx.Client | None = None
    """A client of a second application, whose console has no ``caller``."""
    prefix: str = ""
    own_path: str = OWN
    """The path of the application's own endpoint that starts operations."""
    streams: bool = True
    refuses: Collection[int] = (400, 401, 403, 404, 413, 415, 429, 503)
    """The status codes for which the framework has exceptions."""

    @property
    def url(self) -> str:
        """The URL below which the operations are."""
        return f"{self.http.base_url}".rstrip("/") + self.prefix

    def start(self, steps: int = 3, **headers: str) -> str:
        """Start an operation as Ann and return its name."""
        reply = self.http.post(
            f"{self.prefix}{START}", json={"steps": steps}, headers=ANN | headers
        )
        assert reply.status_code == 200, reply.text
        return str(reply.json()["name"])

    def wait(self, name: str) -> dict[str, Any]:
        """Wait until the operation is done and return it."""
        at = f"{self.prefix}/v1/{name}:wait"
        done: dict[str, Any] = self.http.post(at, json={"timeout": "60s"}, headers=ANN).json()
        assert done["done"], done
        return done


@contextlib.contextmanager
def serving(
    make: Callable[[Counting], Any],
    *,
    serve: Callable[[Any], AbstractContextManager[int]] = uvicorn_serving,
    counting: Counting | None = None,
    unnamed: Callable[[Counting], Any] | None = None,
    closes: bool = True,
    **options: Any,
) -> Iterator[Served]:
    """Serve the application that ``make`` returns, and an edge of another service.

    ``serve`` runs the application on a suitable server and yields its port.
    ``unnamed`` makes a second application, whose console has no ``caller``. With ``closes``, check
    at the end that the stop of the server has closed the service.
    """
    counting, other = counting or build(), build()
    anyone = build(owner_only=False, authorize=None)

    def authenticate(headers: Any) -> str:
        return name_of(headers.get("authorization"))

    starts = {START: other.count, OWN: other.count}
    plain = OperationsApp(other.service, starts=starts, authenticate=authenticate, **PARENTS)
    with contextlib.ExitStack() as stack:

        def client(port: int) -> httpx.Client:
            return stack.enter_context(httpx.Client(base_url=f"http://{HOST}:{port}"))

        port, beside = (
            stack.enter_context(one) for one in (serve(make(counting)), uvicorn_serving(plain))
        )
        if unnamed is not None:
            options["unnamed"] = client(stack.enter_context(serve(unnamed(anyone))))
        try:
            yield Served(counting, client(port), client(beside), **options)
        finally:
            counting.go.set()
    if closes:  # the application has closed the service
        with pytest.raises(lro.errors.Unavailable):
            counting.count.start(CountRequest())


def served_by(**kinds: tuple[Callable[[Counting], Any], dict[str, Any]]) -> Any:
    """Return a fixture that serves the application of each function with its options."""

    @pytest.fixture(params=kinds, scope="module")
    def served(request: pytest.FixtureRequest) -> Iterator[Served]:
        make, options = kinds[request.param]
        with serving(make, **options) as found:
            yield found

    return served

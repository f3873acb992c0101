"""What the integrations under test serve, and what has to hold for each of them.

A framework's test module makes an application by :class:`Served`, and takes over the tests of
:mod:`tests.integrations.checks`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import attrs
import httpx

import lro
from lro.asgi import OperationsApp
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from tests.http.servers import HOST, uvicorn_serving

START, OWN = "/v1/things:count", "/v1/shelves/a/things:count"
BOX = "/v1/boxes/{label}:count"
DOMAIN = "acme.example"
OPTIONS: Any = {"parents": ["projects/*"]}
"""What every edge under test is made with."""
TOKENS = {"Bearer a1": "ann", "Bearer b2": "bob"}
ANN, BOB = ({"authorization": token} for token in TOKENS)


@lro.message("acme.v1.CountRequest")
@attrs.frozen
class CountRequest:
    """What to count."""

    steps: lro.Int32 = 0
    label: str = ""


@lro.message("acme.v1.CountMetadata")
@attrs.frozen
class CountMetadata:
    """How far the counting is."""

    percent: lro.Int32 = 0


@lro.message("acme.v1.CountResponse")
@attrs.frozen
class CountResponse:
    """What was counted."""

    total: lro.Int32 = 0


def name_of(authorization: str | None) -> str:
    """The caller's name."""
    caller = TOKENS.get(authorization or "")
    if caller is None:
        raise lro.errors.Unauthenticated("a token is needed")
    return caller


def authorize(caller: str, verb: str, name: str) -> bool:
    """Bob may not delete."""
    return not (caller == "bob" and verb == "DeleteOperation")


@attrs.frozen
class Counting:
    """A service whose operations belong to their callers, and its method."""

    service: lro.Service
    count: lro.Method[CountRequest, CountResponse, CountMetadata]
    box: lro.Method[CountRequest, CountResponse, CountMetadata]
    name: lro.Method[lro.Struct, lro.types.StringValue, lro.Struct]
    go: threading.Event = attrs.field(factory=threading.Event)
    """Work that counts below zero waits for it."""

    @property
    def starts(self) -> dict[str, Any]:
        """The methods by path, as an edge takes them."""
        return {START: self.count, BOX: self.box}


def build(store: Any = None, **options: Any) -> Counting:
    """A counting service, in memory unless another store is given."""
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
    """An application behind a server, and the plain edge with the same options to compare with."""

    counting: Counting
    http: httpx.Client
    plain: httpx.Client
    prefix: str = ""
    own_path: str = OWN
    """Where an endpoint of the application starts operations."""
    reads_itself: bool = True
    """Whether that endpoint leaves the reading of the body to the library."""

    @property
    def url(self) -> str:
        """Where the operations are."""
        return f"{self.http.base_url}".rstrip("/") + self.prefix

    def start(self, steps: int = 3, **headers: str) -> str:
        """The name of a new operation of Ann."""
        reply = self.http.post(
            f"{self.prefix}{START}", json={"steps": steps}, headers=ANN | headers
        )
        assert reply.status_code == 200, reply.text
        return str(reply.json()["name"])

    def wait(self, name: str) -> dict[str, Any]:
        """An operation that is done."""
        at = f"{self.prefix}/v1/{name}:wait"
        done: dict[str, Any] = self.http.post(at, json={"timeout": "60s"}, headers=ANN).json()
        assert done["done"], done
        return done


@contextlib.contextmanager
def serving(
    make: Callable[[Counting], Any],
    prefix: str = "",
    own_path: str = OWN,
    *,
    serve: Callable[[Any], AbstractContextManager[int]] = uvicorn_serving,
    counting: Counting | None = None,
    **options: Any,
) -> Iterator[Served]:
    """An application that ``make`` makes of a service, and the plain edge with another service.

    ``serve`` gives the port at which a server of the framework's kind serves the application.
    """
    counting, other = counting or build(), build()

    def authenticate(headers: Any) -> str:
        return name_of(headers.get("authorization"))

    plain = OperationsApp(
        other.service,
        starts={START: other.count, OWN: other.count},
        authenticate=authenticate,
        **OPTIONS,
    )
    with serve(make(counting)) as port, uvicorn_serving(plain) as plain_port:
        urls = [f"http://{HOST}:{one}" for one in (port, plain_port)]
        with httpx.Client(base_url=urls[0]) as http, httpx.Client(base_url=urls[1]) as beside:
            yield Served(counting, http, beside, prefix, own_path, **options)

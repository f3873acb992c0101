"""Services with webhooks, whose clock the test advances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from lro import Code, Service
from lro.adapters import Store
from lro.errors import StatusError
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.testing import START, ManualClock
from lro.webhooks import Endpoint, Webhooks, generate_secret
from tests.service_fixtures import MakeService
from tests.work_messages import WorkRequest, WorkResponse

SECRET = generate_secret()
OPEN: dict[str, Any] = {"allow_private": True, "allow_http": True, "ports": None}
"""Options that let webhooks go to servers on this machine."""
METHOD = "acme.v1.Works.Work"
OTHER = "acme.v1.Works.Other"


def webhooks(clock: ManualClock, endpoints: Sequence[Endpoint] = (), **options: Any) -> Webhooks:
    """Return webhooks that may go to any address, without jitter, on the test's clock."""
    given = {
        **OPEN,
        "clock": lambda: (clock() - START).total_seconds(),
        "random": lambda: 0.0,
        **options,
    }
    return Webhooks(endpoints, **given)


def works(make_service: MakeService, store: Store, sends: Webhooks) -> Service:
    """Return a service that runs work within the start; a request can make the work fail."""
    service = make_service(store, InlineExecutor(), webhooks=sends)

    def work(request: WorkRequest) -> WorkResponse:
        if request.text == "fail":
            raise StatusError(Code.INVALID_ARGUMENT, "the source is no video")
        if request.text == "cancel":
            raise StatusError(Code.CANCELLED, "cancelled by the work")
        return WorkResponse(text=request.text)

    service.method(METHOD)(work)
    service.method(OTHER)(work)
    return service


@attrs.frozen
class Here:
    """A factory of services with webhooks, which use the test's clock."""

    clock: ManualClock
    make_service: MakeService

    def serve(
        self, endpoints: Sequence[Endpoint] = (), *, store: Store | None = None, **options: Any
    ) -> tuple[Service, Webhooks]:
        """Return a service (in memory by default) that works within the start, and its webhooks."""
        sends = webhooks(self.clock, endpoints, **options)
        store = MemoryStore(self.clock) if store is None else store
        return works(self.make_service, store, sends), sends


def end(service: Service, text: str = "", method: str = METHOD, **options: Any) -> str:
    """Start an operation that ends at once, and return its name."""
    return service.start(method, WorkRequest(text=text), **options).name


def endpoint(url: str, **options: Any) -> Endpoint:
    """Return an endpoint with a secret."""
    return Endpoint(url=url, **{"secrets": (SECRET,), **options})

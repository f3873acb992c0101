"""The client's flows over gRPC: the same tests as over HTTP, for both clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import lro
from lro_client import CallError
from lro_client.transports.grpc import AsyncGrpcTransport, GrpcTransport
from tests.client import test_served as flows
from tests.client.faces import Face
from tests.client.real_service import FULL_NAME, Harness, Way
from tests.grpc.serving import serving

client = flows.client
OVER_HTTP = flows.test_views_have_method_times_and_attempt
globals().update(
    {n: test for n, test in vars(flows).items() if n.startswith("test_") and test is not OVER_HTTP}
)


@pytest.fixture
def kind(face: Face) -> str:
    """The blocking client calls a server on threads, and the async client a server on asyncio."""
    return {"sync": "threads", "async": "asyncio"}[face.name]


class OverGrpc(Way):
    """A way to call the server: each client's transport makes its own channel."""

    def client(self, **more: Any) -> Any:
        transport: Any = {"sync": GrpcTransport, "async": AsyncGrpcTransport}[self.face.name]
        return self.face.client(transport=transport(self.options["target"]), **more)


@pytest.fixture
def way(kind: str, harness: Harness, face: Face) -> Iterator[Way]:
    with serving(kind, harness.service) as address:
        yield OverGrpc(harness, face, FULL_NAME, {"target": address})


def test_descriptions(way: Way, client: Any) -> None:
    """Over gRPC the FULL view and BatchGet are UNIMPLEMENTED (spec §3.11)."""
    operation = way.start(client)
    for read in (
        lambda: client.get(operation.name, view="FULL"),
        lambda: list(client.list(view="FULL")),
        lambda: client.batch_get([operation.name]),
    ):
        with pytest.raises(CallError, match=r"over (HTTP|gRPC)") as caught:
            read()
        assert caught.value.code is lro.Code.UNIMPLEMENTED

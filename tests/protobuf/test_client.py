"""Protobuf classes as the client's requests and results, over HTTP."""

from __future__ import annotations

import httpx

from lro import Service, TypeRegistry
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.wsgi import OperationsApp
from lro_client import Client
from tests.protobuf.fixtures import of_protobuf

BOOK, STEP = (of_protobuf().codec(f"lrofix.v1.{name}").python for name in ("Book", "Step"))


def read(request: BOOK, job) -> BOOK:  # type: ignore[valid-type]  # a runtime class
    job.report(STEP(name="read"))
    return BOOK(title=request.title.upper())


def test_client_needs_no_registry_for_protobuf_classes() -> None:
    with Service(MemoryStore(), InlineExecutor()) as service:
        method = service.method("lrofix.v1.Books.Read", request=BOOK, response=BOOK, metadata=STEP)
        app = OperationsApp(service, starts={"/v1/books:read": method(read)})
        http = httpx.Client(transport=httpx.WSGITransport(app), base_url="http://books")
        with Client(http=http) as client:
            operation = client.start(
                "/v1/books:read", BOOK(title="emma"), response=BOOK, metadata=STEP
            )
            assert operation.result(timeout=120) == BOOK(title="EMMA")
            assert operation.metadata == STEP(name="read")
            assert client.operation(operation.name, response=BOOK, metadata=STEP).result().title
    assert TypeRegistry(BOOK).name_of(BOOK) == "lrofix.v1.Book"

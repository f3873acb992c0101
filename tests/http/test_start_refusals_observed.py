"""Starts that an edge refuses before it has a message are observed as refused, too."""

from __future__ import annotations

from typing import Any

import pytest

import lro
from lro.adapters import Observer, OperationStarted
from lro.asgi import OperationsApp
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from tests.http.servers import asgi_inside
from tests.work_messages import WorkRequest, WorkResponse

METHOD = "acme.work.v1.Works.Work"


class Starts(Observer):
    """Keeps what became of starts."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def started(self, event: OperationStarted) -> None:
        self.seen.append((event.outcome, event.error_type))


@pytest.mark.parametrize(
    "body", [{"json": {"colour": "red"}}, {"json": {"size": "x"}}, {"content": b"{"}]
)
def test_start_whose_message_cannot_be_read_is_observed(body: dict[str, Any]) -> None:
    """An unknown field, a wrong type, no JSON: refused by the edge, and counted."""
    starts = Starts()
    with lro.Service(MemoryStore(), InlineExecutor(), observers=[starts]) as service:

        @service.method(METHOD, path="/v1/works:work")
        def work(request: WorkRequest) -> WorkResponse:
            return WorkResponse(request.text)

        with asgi_inside(OperationsApp(service, starts=True)) as call:
            body.setdefault("headers", {"content-type": "application/json"})
            assert call("POST", "/v1/works:work", **body).status_code == 400
            assert call("POST", "/v1/works:work", json={}).status_code == 200
        assert starts.seen == [("refused", "INVALID_ARGUMENT"), ("started", "")]

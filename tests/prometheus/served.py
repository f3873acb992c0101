"""An application of several uvicorn workers on one SQLite file, which count to it at once."""

from __future__ import annotations

import os

import lro
from lro._engine import statistics
from lro.asgi import EdgeApp, OperationsApp
from lro.executors.threads import ThreadExecutor
from lro.prometheus import MetricsEdge
from lro.stores.sqlite import SQLiteStore
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

statistics.FLUSH_SECONDS = 0.1

service = lro.Service(SQLiteStore(os.environ["LRO_TEST_FILE"]), ThreadExecutor(2))


@service.method("acme.work.v1.Works.Work", path="/v1/works:work")
def work(request: WorkRequest, _: lro.Job[WorkMetadata]) -> WorkResponse:
    """Does nothing."""
    return WorkResponse(request.text)


app = EdgeApp(MetricsEdge(service, path="/metrics"), OperationsApp(service, starts=True))

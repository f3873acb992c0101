"""An application that several processes serve on one port."""

from __future__ import annotations

import os

import lro
from lro.asgi import EdgeApp, OperationsApp
from lro.executors.threads import ThreadExecutor
from lro.prometheus import MetricsEdge
from lro.stores.sqlite import SQLiteStore
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

service = lro.Service(SQLiteStore(os.environ["LRO_TEST_FILE"]), ThreadExecutor(2))


@service.method("acme.work.v1.Works.Work", path="/v1/works:work")
def work(request: WorkRequest, _: lro.Job[WorkMetadata]) -> WorkResponse:
    """Do nothing."""
    return WorkResponse(request.text)


metrics = EdgeApp(MetricsEdge(service, path="/metrics"))
app = OperationsApp(service, starts=True, fallback=metrics)

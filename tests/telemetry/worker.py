"""A process with a service that can be killed: ``python -m tests.telemetry.worker STORE SPANS``.

With a third argument it starts an operation. It says ``started``, ``began ATTEMPT``, ``done``.
"""

from __future__ import annotations

import sys
import threading
from datetime import timedelta

import lro
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from lro.telemetry import Telemetry
from tests.telemetry.collected import provider_to_file
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

METHOD = "acme.work.v1.Works.Hold"


def say(line: str) -> None:
    """Write one line whole: ``print`` writes its end apart, and another thread can come between."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(store: str, spans: str, start: str = "") -> None:
    """Work until the first operation is done here, or until the process is killed."""
    done = threading.Event()
    service = lro.Service(
        SQLiteStore(store),
        ThreadExecutor(1),
        lease=timedelta(seconds=1),
        telemetry=Telemetry(tracer_provider=provider_to_file(spans)),
    )

    @service.method(METHOD)
    def hold(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        say(f"began {job.attempt}")
        if job.attempt == 1:
            threading.Event().wait()  # until it is killed
        done.set()
        return WorkResponse(request.text)

    with service:
        if start:
            hold.start(WorkRequest(text=start))
            say("started")  # and its span is written
        done.wait()
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])

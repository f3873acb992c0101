"""A worker process that can be killed: ``python -m tests.telemetry.worker STORE SPANS``.

If there is a third argument, the process starts an operation with this text. It prints ``started``,
``began ATTEMPT`` and ``done``.
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
    """Write a line in one piece: ``print`` writes the newline separately, so lines could mix."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(store: str, spans: str, start: str = "") -> None:
    """Work until the first operation has ended in this process, or the process is killed."""
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
            threading.Event().wait()  # until the process is killed
        done.set()
        return WorkResponse(request.text)

    with service:
        if start:
            hold.start(WorkRequest(text=start))
            say("started")  # the span of the start is in the file now
        done.wait()
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])

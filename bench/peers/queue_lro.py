"""This library: ``queue_lro.py front URL`` or ``queue_lro.py work URL``.

The front is a service without workers; a worker is a service with ``SLOTS`` threads.
"""

from __future__ import annotations

import sys

import attrs
from queued import SLOTS, note, serve_front, work_until_told

import lro
from lro.executors.threads import ThreadExecutor
from lro.stores.postgres import PostgresStore

AT_ONCE = 500


@attrs.frozen
class Request:
    pass


@attrs.frozen
class Response:
    pass


def main(role: str, url: str) -> None:
    executor = None if role == "front" else ThreadExecutor(SLOTS)
    with lro.Service(PostgresStore(url), executor) as service:

        @service.method("bench.v1.Bench.Work")
        def work(_: Request) -> Response:
            note()
            return Response()

        def fill(count: int) -> None:
            for first in range(0, count, AT_ONCE):
                work.start_many([Request()] * min(AT_ONCE, count - first))

        if role == "front":
            serve_front(fill, lambda: work.start(Request()))
        else:
            work_until_told()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A service whose process is killed during its work; ``python -m`` runs the service."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import lro
from lro.adapters import Store
from lro.executors.threads import ThreadExecutor
from tests.places import Place
from tests.waiting import PATIENCE, until

LEASE = timedelta(seconds=4)


class Losing:
    """A service of five methods; the work of ``once`` and ``slow`` runs for two minutes."""

    def __init__(self, store: Store, workers: int, lease: timedelta = LEASE) -> None:
        executor = ThreadExecutor(workers) if workers else None
        self.service = lro.Service(store, executor, lease=lease, drain=timedelta(0))
        method = self.service.method

        @method("acme.v1.Losing.Once", at_most_once=True)
        def once(_: lro.Struct, job: lro.Job) -> lro.Struct:
            job.sleep(PATIENCE)
            return lro.Struct({"attempt": job.attempt})

        @method("acme.v1.Losing.Again")
        def again(_: lro.Struct, job: lro.Job) -> lro.Struct:
            if job.attempt == 1:
                job.sleep(PATIENCE)
            return lro.Struct({"attempt": job.attempt})

        @method("acme.v1.Losing.Slow", concurrency=1)
        def slow(_: lro.Struct, job: lro.Job) -> None:
            job.sleep(PATIENCE)

        @method("acme.v1.Losing.Kill")
        def kill(_: lro.Struct, job: lro.Job) -> None:
            job.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)

        @method("acme.v1.Losing.Beside")
        def beside(_: lro.Struct, job: lro.Job) -> None:
            job.sleep(1)

        self.methods = {"once": once, "again": again, "slow": slow, "kill": kill, "beside": beside}

    def begun(self, method: str, many: int = 1) -> str:
        """Start ``many`` operations; return the first one's name once its work has begun."""
        name: str = self.methods[method].start_many([lro.Struct({})] * many)[0].name
        until(lambda: self.service.store.get(name).attempt == 1)
        return name


def main(kind: str, where: str, schema: str, workers: str = "", lease: str = "") -> None:
    """Begin work, queue 300 operations and print three names; with ``workers``, do queued work."""
    span = timedelta(seconds=float(lease)) if lease else LEASE / (4 if workers else 1)
    losing = Losing(Place(kind, where, schema).open(), int(workers or 3), span)
    if workers:
        with losing.service:
            sys.stdin.read()
        return
    names = [losing.begun("slow", 301), losing.begun("once"), losing.begun("again")]
    print(*names, flush=True)
    time.sleep(PATIENCE)


if __name__ == "__main__":
    main(*sys.argv[1:])

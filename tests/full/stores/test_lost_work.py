"""Work of a killed process is found by processes that are slow or have no free worker."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing, contextmanager
from datetime import timedelta

import attrs
import pytest

import lro
from tests.full.stores.losing import LEASE, Losing
from tests.places import Place
from tests.services.processes import killed_at_end
from tests.waiting import starved_seconds, until

HOUR = timedelta(hours=1)
SOME_SECONDS = 15
"""Seconds after the lease in which lost work must end or rerun if each statement takes 0.3 s."""


@contextmanager
def victim(place, lease=LEASE):
    """Run a process that begins three operations; yield the process and their names."""
    where = [place.kind, place.where, place.schema, "", str(lease.total_seconds())]
    command = [sys.executable, "-m", "tests.full.stores.losing", *where]
    with killed_at_end(command, stdout=subprocess.PIPE) as process:
        yield process, process.stdout.readline().split()


def reason(service, name):
    (details,) = service.get(name).error.details
    return details.payload["reason"]


def test_lost_work_is_found_in_a_slow_database():
    """With a delay of 0.3 s per statement, lost work still fails or runs again in time."""
    pytest.importorskip("psycopg")
    from tests.services.postgres import shared_server
    from tests.services.proxy import proxy_to

    server = shared_server()
    place = Place("postgres", server.url, server.fresh_schema())
    with proxy_to(server.port) as proxy, victim(place) as (process, (_, once, again)):
        slow = attrs.evolve(place, where=server.url.replace(f":{server.port}", f":{proxy.port}"))
        with closing(slow.open()) as store, Losing(store, 2).service as service:
            proxy.delay = 0.3
            service.edges.start_maintenance()
            time.sleep(LEASE.total_seconds())  # maintenance scans for orphans meanwhile
            assert not service.get(once).done
            process.kill()
            began, starved = time.monotonic(), starved_seconds()
            until(lambda: service.get(once).done and service.get(again).done)
            seconds = time.monotonic() - began - (starved_seconds() - starved)
            assert service.get(again).response.payload == {"attempt": 2}
            assert reason(service, once) == "WORKER_LOST"
            assert seconds < LEASE.total_seconds() + SOME_SECONDS
            proxy.delay = 0


def test_worker_that_is_cut_off_counts_as_lost_and_stops():
    """Other processes take over a cut-off worker's work; it later reconnects as a new worker."""
    pytest.importorskip("psycopg")
    from tests.services.postgres import shared_server
    from tests.services.proxy import proxy_to

    server = shared_server()
    place = Place("postgres", server.url, server.fresh_schema())
    with proxy_to(server.port) as proxy, closing(place.open()) as store:
        far = attrs.evolve(place, where=server.url.replace(f":{server.port}", f":{proxy.port}"))
        with victim(far) as (process, (_, once, again)), Losing(store, 3).service as service:

            def owners():
                return [one.owner for one in service.workers() if one.pid == process.pid]

            before = until(owners)
            proxy.cut = True
            until(lambda: service.get(once).done and service.get(again).done)
            assert reason(service, once) == "WORKER_LOST"
            assert service.get(again).response.payload == {"attempt": 2}
            assert process.poll() is None
            proxy.cut = False
            until(owners, lambda found: found and found != before)
            assert reason(service, once) == "WORKER_LOST"


def test_lost_work_is_ended_while_all_workers_are_busy(place):
    """Lost work that may not be retried ends without a free worker; other lost work is queued."""
    with closing(place.open()) as store:
        losing = Losing(store, 1)
        with losing.service as service:
            losing.begun("once")  # this keeps the only worker busy
            with victim(place) as (process, (slow, once, again)):
                process.kill()
                process.wait()
            until(lambda: service.get(once).done)
            assert reason(service, once) == "WORKER_LOST"
            until(lambda: store.get(slow).waits and store.get(again).waits)
            assert store.count_waiting(1000) == 302


@pytest.mark.platform
@pytest.mark.skipif(sys.platform == "win32", reason="its locks do not say who has ended")
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize("restarted", [True, False])
def test_killed_process_is_noticed_before_its_lease_ends(place, restarted):
    """A kill is noticed by a process that starts later, and by an older process without workers.

    An older process with workers could itself be the one that began the work.
    """
    with closing(place.open()) as store:
        service = Losing(store, 3 if restarted else 0, HOUR).service
        if not restarted:
            service.edges.start_maintenance()
        with victim(place, HOUR) as (process, (_, once, again)):
            process.kill()
            process.wait()
        with service:
            until(lambda: service.get(once).done)
            assert reason(service, once) == "WORKER_LOST"
            record = until(lambda: store.get(again), lambda seen: seen.lost_attempts == 1)
            assert restarted or record.waits
            if restarted:
                until(lambda: service.get(again).done)
                assert service.get(again).response.payload == {"attempt": 2}


def test_work_that_kills_its_process_costs_other_work_no_attempt(place):
    """Work that kills its process runs alone and fails after ``max_lost``; other work succeeds."""
    with closing(place.open()) as store:
        service = Losing(store, 0, LEASE / 4).service
        methods = [
            service.edges.methods.specs[f"acme.v1.Losing.{name}"] for name in ("Kill", "Beside")
        ]
        names = [service.start(spec.full_name, lro.Struct({})).name for spec in methods]
        names += [service.start(methods[1].full_name, lro.Struct({})).name for _ in range(5)]
        command = [sys.executable, "-m", "tests.full.stores.losing"]
        command += [place.kind, place.where, place.schema, "8"]
        begun = 0
        while not all(service.get(name).done for name in names):
            begun += 1
            with killed_at_end(command, stdin=subprocess.PIPE) as process:
                until(
                    lambda process=process: (
                        process.poll() is not None or all(service.get(name).done for name in names)
                    )
                )
        assert reason(service, names[0]) == "WORKER_LOST"
        assert {service.get(name).state for name in names[1:]} == {"SUCCEEDED"}
        assert begun <= 5
        service.close()

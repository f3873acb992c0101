"""Kills of processes that end operations and send webhooks: no event may be lost or invented.

Two processes work on one store and are killed again and again, at any time or by a trap: at the end
of an operation, or when a notification is claimed or settled. A receiver stays alive and records
the events that it accepts; it refuses some events, and accepts some without a response. Some
operations are started in the transaction that inserts a row: either both exist or neither does.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

import attrs

import lro
from lro._bridge import rfc3339
from lro.adapters import Record
from lro.executors.threads import ThreadExecutor
from lro.webhooks import Endpoint, Webhooks, verify
from tests.chaos.campaign import new_store
from tests.chaos.server import store_at
from tests.chaos.servers import FORKS
from tests.chaos.trapped import trapped
from tests.chaos.traps import SERVER, Moment, Point, Trap, arm
from tests.waiting import PATIENCE, until

LEASE: Final = timedelta(seconds=1)
SECRET: Final = "whsec_" + "c2VjcmV0" * 4
_TIMEOUT: Final = 0.5
_OWN: Final = "owns/1"
"""The parent of operations whose start names an endpoint."""
_WITHIN: Final = "rows/1"
"""The parent of operations that are started in a transaction."""
_PARENTS: Final = ("", _OWN, _WITHIN)
_UNCANCELLED_SECONDS: Final = 2.0
_SPRING_SECONDS: Final = 3.0
"""The seconds after which a process is killed if its trap has not sprung."""
_MOMENTS: Final = (
    *((Point.END, moment) for moment in Moment),
    *((Point.SETTLE, moment) for moment in Moment),
    (Point.CLAIM_DUE, Moment.BEFORE),
    (Point.CLAIM_DUE, Moment.AFTER),
)


@attrs.frozen
class Row:
    """The request of an operation: a number, which decides how the operation ends."""

    number: int = 0


@attrs.frozen
class Done:
    """The response of an operation."""

    number: int = 0


@attrs.frozen
class Progress:
    """The metadata of an operation, which never change."""

    percent: lro.Int32 = 0


@attrs.frozen
class Tally:
    """The results of a campaign."""

    kills: int
    sprung: int
    """The number of kills by a trap."""
    operations: int
    ends: Mapping[str, int]
    events: int
    """The number of different events that the receiver has accepted."""
    repeats: int
    """The number of repeated events that the receiver has accepted."""
    faults: Sequence[str]


def service_on(place: str, url: str) -> tuple[lro.Service, Any]:
    """Return a service on the store at this path or URL, and the service's method."""
    hooks = Webhooks(
        [Endpoint(url=f"{url}/all", id="all", secrets=(SECRET,))],
        secrets=(SECRET,),
        allow_private=True,
        allow_http=True,
        ports=None,
        schedule=[0.1] * 200,
        timeout=_TIMEOUT,
    )
    service = lro.Service(
        trapped(store_at(place)), ThreadExecutor(2), lease=LEASE, drain=timedelta(0), webhooks=hooks
    )

    @service.method("acme.v1.Rows.Do")
    def do(request: Row, job: lro.Job[Progress]) -> Done:
        job.sleep(request.number % 7 / 1000)
        if request.number % 5 == 1:
            raise lro.StatusError(lro.Code.FAILED_PRECONDITION, "as was asked for")
        if request.number % 5 == 2:
            job.sleep(_UNCANCELLED_SECONDS)  # usually ended by a cancel
        return Done(request.number)

    return service, do


@contextlib.contextmanager
def table(place: str) -> Iterator[tuple[Any, str]]:
    """Connect to a store's database; yield the connection and a table name for test rows."""
    if place.startswith("postgresql:"):
        import psycopg

        link: Any = psycopg.connect(place.partition("#")[0])
    else:
        link = sqlite3.connect(place, timeout=60)
    with contextlib.closing(link):
        yield link, "rows_" + place.partition("#")[2]


def live(place: str, names: Path, url: str, seed: int, armed: bool, ready: Connection) -> None:
    """Start and cancel operations, and send pending webhooks, until the process is killed."""
    chance = random.Random(seed)
    os.setpgid(0, 0)
    os.environ[SERVER] = str(os.getpid())
    if armed:
        point, moment = chance.choice(_MOMENTS)
        arm(Trap(point=point, moment=moment, count=chance.randint(1, 20)))
    service, do = service_on(place, url)
    own = Endpoint(url=f"{url}/own", id="own")
    with service, names.open("ab", buffering=0) as started, table(place) as (link, rows):
        ready.send(True)
        for number in range(seed, sys.maxsize):
            if number % 4 == 0:
                handle = do.start(Row(number), parent=_WITHIN, within=link)
                link.execute(f"INSERT INTO {rows} VALUES ('{handle.name}')")
                (link.rollback if number % 3 == 0 else link.commit)()
                continue
            if number % 3:
                handle = do.start(Row(number))
            else:
                handle = do.start(Row(number), parent=_OWN, notify=[own])
            started.write(f"{handle.name}\n".encode())
            if number % 5 == 2:
                service.cancel(handle.name)
            time.sleep(chance.uniform(0, 0.05))


@contextlib.contextmanager
def receiver() -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """Run a receiver of webhooks; yield its URL and a list of (path, id, event)."""
    chance = random.Random(0)
    taken = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["content-length"])
            body = self.rfile.read(size)
            if len(body) < size:  # the sender was killed while sending
                self.close_connection = True
                return
            what = chance.random()
            if what < 0.1:
                self.send_error(503)
                return
            found = verify(body, dict(self.headers), [SECRET], now=time.time())
            taken.append((self.path, found.id, json.loads(body)))
            if what < 0.15:
                self.close_connection = True  # send no response
                return
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", taken
        server.shutdown()
        serving.join()


def webhook_trial(kind: str, folder: Path, kills: int, seed: int) -> Tally:
    """Kill ``kills`` processes that send webhooks; compare the events with the operations."""
    chance, place, names = random.Random(seed), new_store(kind, folder), folder / "names"
    with contextlib.ExitStack() as stack:
        url, taken = stack.enter_context(receiver())
        link, rows = stack.enter_context(table(place))
        link.execute(f"CREATE TABLE {rows} (name TEXT)")
        link.commit()

        def worker(n: int) -> _Worker:
            made = _Worker(place, names, url, 1000 * (1000 * seed + n), armed=n % 3 > 0)
            stack.callback(made.process.kill)
            return made

        sprung = 0
        running = [worker(n) for n in range(2)]
        for n in range(kills):
            victim = running.pop(0 if chance.random() < 0.8 else -1)
            sprung += victim.die(chance.uniform(0, 0.6))
            if n + 2 < kills + 1:
                running.append(worker(n + 2))
        for left in running:
            left.die(0)
        service, _ = service_on(place, url)
        with service:
            faults = [*_unfinished(service)]
            records = [r for parent in _PARENTS for r in _records(service, parent)]
        committed = {name for (name,) in link.execute(f"SELECT name FROM {rows}").fetchall()}
        within = {record.name for record in records if record.parent == _WITHIN}
        faults += [f"{name}: without its row, or a row without it" for name in committed ^ within]
    started = names.read_text().split()
    return _judge(started, records, taken, kills + len(running), sprung, faults)


class _Worker:
    def __init__(self, place: str, names: Path, url: str, seed: int, armed: bool) -> None:
        self._armed = armed
        self._ready, ready = FORKS.Pipe(duplex=False)
        self.process = FORKS.Process(target=live, args=(place, names, url, seed, armed, ready))
        self.process.start()
        ready.close()

    def die(self, seconds: float) -> bool:
        """Kill the process if its trap does not; return whether the trap killed it."""
        assert wait([self._ready, self.process.sentinel], PATIENCE)  # the trap may spring first
        self._ready.close()
        self.process.join(_SPRING_SECONDS if self._armed else seconds)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join(PATIENCE)
            return False
        assert self.process.exitcode == -signal.SIGKILL, "it has ended by itself"
        return True


def _records(service: lro.Service, parent: str) -> Iterator[Record]:
    after = None
    while True:
        page = service.store.page(parent, after, 500)
        yield from page.records
        if page.reached is None:
            return
        after = page.reached


def _unfinished(service: Any) -> Iterator[str]:
    """Wait, then yield the operations that have not ended or whose webhooks are pending."""

    def owes_nothing() -> bool:
        over = all(r.done for parent in _PARENTS for r in _records(service, parent))
        return over and service.store.next_due() is None

    with contextlib.suppress(AssertionError):
        until(owes_nothing)
    for parent in _PARENTS:
        for record in _records(service, parent):
            if not record.done or record.notify_at is not None:
                yield f"{record.name}: {record.state}, and owes something: {record.notify_at}"


def _judge(
    started: Sequence[str],
    records: Sequence[Record],
    received: Sequence[tuple[str, str, Any]],
    kills: int,
    sprung: int,
    faults: list[str],
) -> Tally:
    known = {record.name: record for record in records}
    faults += [f"{name}: started, and lost" for name in started if name not in known]
    taken: dict[tuple[str, str], list[tuple[str, str, str]]] = defaultdict(list)
    for to, id, event in received:
        taken[event["data"]["name"], to].append((id, event["type"], event["timestamp"]))
    for (name, to), events in taken.items():
        record = known.get(name)
        if record is None or record.end_time is None:
            faults.append(f"{name}: notified, and has not ended")
            continue
        if len({id for id, _, _ in events}) > 1:
            faults.append(f"{name}: events of several ids at {to}: {events}")
        wanted = f"operation.{record.state.value.lower()}", rfc3339(record.end_time)
        faults += [f"{name}: wanted {wanted}, got {one}" for one in events if one[1:] != wanted]
    for name, record in known.items():
        for to in ("/all", "/own") if record.parent == _OWN else ("/all",):
            if (name, to) not in taken:
                faults.append(f"{name}: has ended as {record.state}, and {to} was never notified")
    return Tally(
        kills=kills,
        sprung=sprung,
        operations=len(known),
        ends=Counter(record.state.value for record in records),
        events=len(taken),
        repeats=sum(len(events) - 1 for events in taken.values()),
        faults=faults,
    )

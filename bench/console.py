"""Every call of the console's page with 10^6 operations, over HTTP: p50, p95, max.

Targets: a p95 of at most 100 ms, or 600 ms if no index helps a filter. ``--keep FOLDER`` keeps the
SQLite file in that folder for further runs.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import attrs

from bench import million
from bench.across import postgres_server
from bench.filling import RARE
from bench.load import Server
from bench.measure import MISSING, Figure, late

PARSER = argparse.ArgumentParser(prog="python -m bench console")
PARSER.add_argument("--size", type=int, default=1_000_000)
PARSER.add_argument("--calls", type=int, default=100)
PARSER.add_argument(
    "--stores", nargs="+", choices=("sqlite", "postgres"), default=["sqlite", "postgres"]
)
PARSER.add_argument("--keep", type=Path, help="the folder in which the SQLite file is kept")

PAGE: Final = 50
FAST: Final = 0.1
SLOW: Final = 0.6
"""The targets, in seconds, for calls with an index and for those without."""


class Client:
    """A client with one connection that is kept open, as in a browser."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def call(self, path: str, body: Any = None) -> Any:
        """Call a path, and return the JSON of the reply."""
        return json.loads(self.raw(path, body))

    def raw(self, path: str, body: Any = None) -> bytes:
        """Call a path, and return the body of the reply."""
        sent = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"content-type": "application/json"}
        self._open.request("GET" if body is None else "POST", path, sent, headers)
        reply = self._open.getresponse()
        content = reply.read()
        assert reply.status == 200, content
        return content

    def watch(self, names: Sequence[str]) -> None:
        """Watch operations until the first event of each has arrived."""
        one = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        body = json.dumps({"names": names}).encode()
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        one.request("POST", "/v1/operations:watch", body, headers)
        reply = one.getresponse()
        found = 0
        while found < len(names):
            line = reply.readline()
            assert line
            found += line.startswith(b"data:")
        one.close()


@attrs.frozen
class Measured:
    """A call of the page: a function that makes the call once, and the target in seconds."""

    label: str
    call: Callable[[], object]
    target: float = FAST


def calls(client: Client, calls_each: int) -> Iterator[Measured]:
    """Yield all calls of the page."""

    def listed(text: str = "", token: str = "", owner: str = "", size: int = PAGE) -> Any:
        query = {"pageSize": size} | ({"filter": text} if text else {})
        query |= {"pageToken": token} if token else {}
        collection = f"{owner}/operations" if owner else "operations"
        return client.call(f"/v1/{collection}?{urlencode(query)}")

    def filtered(label: str, text: str, target: float = FAST) -> Measured:
        return Measured(f"list, {label}", lambda: listed(text), target)

    tokens = [""]

    def next_page() -> None:
        tokens.append(listed(token=tokens[-1])["nextPageToken"])

    day = datetime.now(UTC) - timedelta(days=1)
    week, fortnight = (f"{day - timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}" for days in (6, 13))
    run = "type(metadata) = bench.v1.Run3Metadata"
    yield Measured("session", lambda: client.call("/session"))
    yield Measured("list, first page", listed)
    yield Measured("list, next page", next_page)
    yield Measured("list, first page of a parent", lambda: listed(owner="projects/p1"))
    yield filtered("in progress", "state() = IN_PROGRESS")
    yield filtered("failed", "state() = FAILED")
    yield filtered("asked to stop (none is)", "cancel_requested()", SLOW)
    yield filtered("one method of 20", run)
    yield filtered("one method, failed", f"{run} AND state() = FAILED")
    yield filtered("last day", f'create_time() >= "{day:%Y-%m-%dT%H:%M:%SZ}"')
    yield filtered(
        "failed in one week",
        f'state() = FAILED AND create_time() >= "{fortnight}" AND create_time() < "{week}"',
    )
    yield filtered("indexed metadata", 'metadata.dataset = "d17"')
    yield filtered("metadata without index", 'metadata.owner = "o17"', SLOW)
    yield filtered("a word", RARE, SLOW)
    yield filtered("no match, no index", 'metadata.owner = "unknown"', SLOW)

    # The names come from the list of all operations, so that no earlier call has cached them.
    names: list[str] = []
    token = ""
    for _ in range(max(2, calls_each // 8)):
        page = listed(token=token, size=1000)
        names += [one["name"] for one in page["operations"]]
        token = page.get("nextPageToken", "")
        if not token:
            break
    shares = {size: itertools.cycle(_groups(names, size)) for size in (50, 100)}

    def of_many(verb: str, size: int) -> Measured:
        label = f"{verb}, {size} operations"
        return Measured(
            label, lambda: client.call(f"/v1/operations:{verb}", {"names": next(shares[size])})
        )

    yield of_many("batchGet", 50)
    yield of_many("batchGet?view=FULL", 50)
    yield of_many("batchGet?view=FULL", 100)
    running = [one["name"] for one in listed("state() = IN_PROGRESS", size=1000)["operations"]]
    groups = itertools.cycle(_groups(running, 100))
    yield Measured("watch, the first events of 100", lambda: client.watch(next(groups)))
    for minutes, label in ((60, "60 min"), (360, "6 h"), (4320, "72 h")):
        path = f"/tally?minutes={minutes}"
        yield Measured(f"tally, {label}", lambda path=path: client.raw(path))  # type: ignore[misc]


def _groups(names: Sequence[str], size: int) -> Iterator[list[str]]:
    step = max(1, len(names) // size)
    for first in range(step):
        yield list(names[first::step][:size])


def row(kind: str, one: Measured, number: int) -> Iterator[Figure]:
    """Yield the times of a call, which is made three times before the measurement."""
    for _ in range(3):
        one.call()
    times = []
    for _ in range(number):
        began = time.perf_counter()
        one.call()
        times.append(time.perf_counter() - began)
    targets = (None, one.target * 1e3, None)
    yield from late(f"{kind}, {one.label}", times, shares=(0.5, 0.95, 1.0), targets=targets)


def run(options: argparse.Namespace) -> Iterator[Figure]:
    with contextlib.ExitStack() as stack:
        for kind in options.stores:
            if kind == "sqlite":
                folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
                where = str(folder / f"console{options.size}.db")
            elif (database := postgres_server()) is not None:
                where = database.url
            else:
                MISSING.append("PostgreSQL: it is not installed")
                continue
            if not os.path.exists(where):
                million.fill(kind, where, options.size)
            with contextlib.closing(Server("million", kind, where)) as server:
                for one in calls(Client(server.port), options.calls):
                    yield from row(kind, one, options.calls)

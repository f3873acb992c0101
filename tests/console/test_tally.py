"""The console's statistics: who may read them, and how often the store is read."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from lro import asgi, wsgi
from lro.console import ConsoleEdge
from lro.http import HttpRequest
from lro.stores.memory import MemoryStore
from lro.testing import START, ManualClock
from tests.console.serving import authenticate, console, counting
from tests.integrations.counting import ANN, BOB, Counting, CountRequest
from tests.waiting import until

MINUTE = datetime(2026, 11, 25, 11, 59, tzinfo=UTC)


class CountedStore(MemoryStore):
    """A store with some counts, which records the arguments of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[timedelta, int]] = []
        self.parents: list[Collection[str]] = []
        self.away = False

    def read_counts(self, since: datetime, limit: int = 10_000, step_minutes: int = 1) -> Any:
        """Return the counts of two methods, one of which has counts at two times."""
        if self.away:
            raise OSError("the disk is gone")
        self.asked.append((self.now() - since, step_minutes))
        two = timedelta(minutes=step_minutes)
        return [
            SimpleNamespace(minute=MINUTE - two, method="a.B.C", counts={"starts.started": 2}),
            SimpleNamespace(minute=MINUTE, method="", counts={"expired": 1}),
            SimpleNamespace(
                minute=MINUTE, method="a.B.D", counts={"queue.0": 1, "queue.sum": 0.25}
            ),
            SimpleNamespace(minute=MINUTE, method="a.B.C", counts={"queue.0": 1, "queue.sum": 0.5}),
        ]

    def read_load(self, parents: Collection[str], limit: int) -> Any:
        self.parents.append(parents)
        one = SimpleNamespace(
            method="a.B.C",
            waiting=3,
            running=2,
            oldest_create_time=MINUTE,
            oldest_name="operations/x",
        )
        return SimpleNamespace(methods=[one], owners={"ab12": 2}, capped=limit < 10_000)


def counted(**options: Any) -> tuple[Counting, CountedStore]:
    """Return a service on a ``CountedStore``, and the store."""
    store = CountedStore()
    return counting(store=store, **options), store


def test_tally_has_counts_work_in_progress_and_buckets() -> None:
    """The tally has the counts of all methods per step, the work in progress, and the buckets."""
    made, store = counted()
    with console("uvicorn", made, parents=["projects/p", "projects/*"]) as client:
        assert client.get("/session").json()["statistics"]
        found = client.get("/tally").json()
    assert abs(datetime.fromisoformat(found.pop("now")) - store.now()) < timedelta(minutes=1)
    assert found.pop("buckets")[:3] == [0.01, 0.05, 0.1]
    assert found == {
        "minutes": 60,
        "stepMinutes": 1,
        "everySeconds": 15,
        "limit": 10_000,
        "inProgress": {
            "capped": False,
            "methods": [
                {
                    "method": "a.B.C",
                    "waiting": 3,
                    "running": 2,
                    "oldestCreateTime": "2026-11-25T11:59:00Z",
                    "oldestName": "operations/x",
                }
            ],
            "workers": [{"owner": "ab12", "operations": 2}],
        },
        "paused": [],
        "schedules": [],
        "points": [
            {"minute": "2026-11-25T11:58:00Z", "counts": {"starts.started": 2}},
            {
                "minute": "2026-11-25T11:59:00Z",
                "counts": {"expired": 1, "queue.0": 2, "queue.sum": 0.75},
            },
        ],
    }
    assert [[*one] for one in store.parents] == [["", "projects/p"]]


def test_schedules_are_shown_with_their_next_tick() -> None:
    """Schedules are read from the store with their next tick; the reply is cached for 5 seconds."""
    made, store = counted()
    clock = ManualClock()
    options: Any = {
        "authenticate": lambda headers: None,
        "clock": lambda: (clock() - START).total_seconds(),
    }
    edge = ConsoleEdge(made.service, **options)
    name = "acme.v1.Things.Count"

    def shown() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(edge.handle(request_of(60)).body)["schedules"]
        return found

    made.service.schedule("hourly", timedelta(hours=1), name, CountRequest())
    made.service.run_maintenance()
    known = until(store.schedules)[0]
    wanted = {
        "name": "hourly",
        "method": name,
        "expression": "every 1:00:00",
        "timezone": "UTC",
        "nextTick": known.next_tick.isoformat().replace("+00:00", "Z"),
    }
    assert shown() == [wanted]
    made.service.schedule("other", timedelta(hours=1), name, CountRequest())
    made.service.run_maintenance()
    until(lambda: len(store.schedules()) == 2)
    clock.advance(4)
    assert shown() == [wanted]
    clock.advance(1)
    assert [one["name"] for one in shown()] == ["hourly", "other"]
    made.service.close()


@pytest.mark.parametrize(
    ("minutes", "step"), [(1, 1), (120, 1), (121, 5), (360, 5), (1440, 5), (1441, 30), (4320, 30)]
)
def test_long_windows_are_read_in_larger_steps(minutes: int, step: int) -> None:
    """A longer window is read in larger steps, so that a reply has a few hundred points at most."""
    made, store = counted()
    with console("waitress", made) as client:
        found = client.get(f"/tally?minutes={minutes}").json()
    assert (found["minutes"], found["stepMinutes"]) == (minutes, step)
    (asked,) = store.asked
    assert asked[1] == step
    assert timedelta(0) <= asked[0] - timedelta(minutes=minutes) < timedelta(seconds=30)


@pytest.mark.parametrize(
    "query", ["minutes=0", "minutes=4321", "minutes=x", "minutes=-1", "minutes=²", "hours=1"]
)
def test_invalid_window_is_an_invalid_argument(query: str) -> None:
    """A window that is out of range or not a number gets INVALID_ARGUMENT."""
    made, _ = counted()
    with console("uvicorn", made) as client:
        wrong = client.get(f"/tally?{query}")
    assert (wrong.status_code, wrong.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")


def request_of(minutes: int) -> HttpRequest:
    """Return a request for the tally of the last ``minutes`` minutes."""
    return HttpRequest(method="GET", path="/tally", query=f"minutes={minutes}")


def test_tally_is_cached_for_five_seconds() -> None:
    """A window's tally is read once in five seconds for all pages; only a few windows are kept."""
    made, store = counted()
    now = 0.0
    edge = ConsoleEdge(made.service, authenticate=lambda headers: None, clock=lambda: now)

    def ask(minutes: int) -> int:
        return edge.handle(request_of(minutes)).status

    with made.service, ThreadPoolExecutor(8) as pages:
        assert {*pages.map(ask, [60] * 40)} == {200}
        assert len(store.asked) == 1
        now = 4.9
        ask(60)
        assert len(store.asked) == 1
        now = 5.0
        ask(60)
        assert len(store.asked) == 2
        for minutes in range(1, 10):
            ask(minutes)
        assert len(store.asked) == 11
        ask(60)
        assert len(store.asked) == 12
        ask(9)
        assert len(store.asked) == 12


class AskedStore(MemoryStore):
    """A store that records how far back each call reads counts."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.spans: list[timedelta] = []

    def read_counts(self, since: datetime, limit: int = 10_000, step_minutes: int = 1) -> Any:
        self.spans.append(self.now() - since)
        return super().read_counts(since, limit, step_minutes)


@pytest.mark.parametrize("minutes", [60, 360, 4000])
def test_later_reads_of_a_window_read_only_its_end(minutes: int) -> None:
    """A later read of a window reads only its end, but returns the same as a complete read."""
    clock, draw = ManualClock(), random.Random(minutes)
    store = AskedStore(clock)
    made = counting(store=store)

    def ask(edge: ConsoleEdge) -> Any:
        return json.loads(edge.handle(request_of(minutes)).body)

    def edge() -> ConsoleEdge:
        every = itertools.count(step=60).__next__
        return ConsoleEdge(made.service, authenticate=lambda headers: None, clock=every)

    with made.service:
        kept = edge()
        found = ask(kept)
        for _ in range(60):
            passed = timedelta(seconds=draw.choice((0, 5, 15, 61, minutes * 6)))
            for _ in range(draw.randrange(3)):
                store.add_counts(
                    clock(), {draw.choice("ABC"): {"starts.started": 1, "queue.sum": 0.5}}
                )
                clock.advance(seconds=draw.randrange(20))
            clock.advance(seconds=passed.total_seconds())
            store.spans = []
            found = ask(kept)
            assert store.spans[0] <= passed + timedelta(seconds=60 + 60)
            assert found == ask(edge())
        assert len(found["points"]) > 1


def test_counts_that_are_stored_late_are_found_by_the_next_read() -> None:
    """Counts that a process stores after their minute has been read are in the next reply."""
    clock = ManualClock()
    store = MemoryStore(clock)
    made = counting(store=store)
    every = itertools.count(step=60).__next__
    edge = ConsoleEdge(made.service, authenticate=lambda headers: None, clock=every)
    with made.service:
        clock.advance(seconds=59)
        minute = clock()
        clock.advance(seconds=2)
        assert json.loads(edge.handle(request_of(60)).body)["points"] == []
        store.add_counts(minute, {"A": {"starts.started": 1}})
        clock.advance(seconds=5)
        (point,) = json.loads(edge.handle(request_of(60)).body)["points"]
    assert point["counts"] == {"starts.started": 1}


def test_tally_needs_the_permission_to_list_all_parents() -> None:
    """The tally needs permission to list all parents, because its counts cover all of them."""

    def authorize(caller: str, verb: str, name: str) -> bool:
        assert verb == "ListOperations"
        return caller == "ann" or name in ("", "projects/p")

    made, store = counted(authorize=authorize)
    with console("uvicorn", made, authenticate=authenticate, parents=["projects/p"]) as client:
        assert client.get("/tally").status_code == 401
        assert client.get("/tally", headers=BOB).status_code == 403
        assert store.asked == []
        assert client.get("/tally", headers=ANN).status_code == 200
        known = client.get("/session", headers=BOB).json()
        assert (known["parents"], known["statistics"]) == (["", "projects/p"], False)


class Uncounted:
    """A store that has no statistics."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    def __getattr__(self, name: str) -> Any:
        if name in ("add_counts", "read_counts", "read_load"):
            raise AttributeError(name)
        return getattr(self._store, name)


def test_service_that_does_not_list_or_count_has_no_tally() -> None:
    for made in (counting(verbs=("CancelOperation",)), counting(store=Uncounted())):
        with console("uvicorn", made) as client:
            assert client.get("/tally").status_code == 501
            assert not client.get("/session").json()["statistics"]
    made, _ = counted(owner_only=True)
    with console("uvicorn", made, authenticate=authenticate) as client:
        assert client.get("/tally", headers=ANN).status_code == 403
        assert not client.get("/session", headers=ANN).json()["statistics"]


@pytest.mark.parametrize("kind", ["uvicorn", "waitress"])
def test_staff_of_service_with_owners_read_the_tally(kind: str) -> None:
    """Staff have the overview; a cached tally is not shown to callers who are not staff."""
    made, _ = counted(owner_only=True, staff=lambda caller: caller == "ann")
    with console(kind, made, authenticate=authenticate) as client:
        for _ in range(2):
            assert client.get("/tally", headers=ANN).status_code == 200
            assert client.get("/session", headers=ANN).json()["statistics"]
            assert client.get("/tally", headers=BOB).status_code == 403
            assert not client.get("/session", headers=BOB).json()["statistics"]


def test_error_of_the_store_is_not_cached() -> None:
    """An error of the store is not cached: the next request reads the store again."""
    made, store = counted()
    with console("uvicorn", made) as client:
        store.away = True
        assert client.get("/tally").status_code == 500
        store.away = False
        assert client.get("/tally").status_code == 200


@pytest.mark.parametrize("app", [asgi, wsgi])
def test_tally_of_a_real_store_has_what_is_in_progress(app: Any) -> None:
    made = counting()
    begun = threading.Event()

    @made.service.method("acme.v1.Things.Hold")
    def hold(request: CountRequest) -> None:
        begun.set()
        made.go.wait(60)

    with console("uvicorn" if app is asgi else "waitress", made) as client:
        name = hold.start(CountRequest()).name
        assert begun.wait(20)
        progress: dict[str, Any] = client.get("/tally?minutes=5").json()["inProgress"]
    (one,) = progress["methods"]
    assert (one["method"], one["running"], one["oldestName"]) == ("acme.v1.Things.Hold", 1, name)
    workers: Sequence[Any] = progress["workers"]
    assert [worker["operations"] for worker in workers] == [1]

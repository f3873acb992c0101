"""Sample records, requests and changes for store tests, and helpers that make concurrent calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from queue import SimpleQueue
from typing import Any, Final

import attrs

from lro import AnyMessage
from lro._model.operation import claim, end, report, request_cancel, with_derived
from lro.adapters import (
    Change,
    Claim,
    Claimed,
    Done,
    Inserted,
    Record,
    RequestKey,
    Schedule,
    Worker,
)
from tests.waiting import PATIENCE, joined

REQUEST: Final = AnyMessage("type.googleapis.com/acme.v1.Request", {"text": "Ünï ✓ \U0001f600"})
DONE: Final = AnyMessage("type.googleapis.com/acme.v1.Response", {})
METHODS: Final = frozenset({"M"})
"""The method of all sample records."""
ANY_NUMBER: Final[Mapping[str, int | None]] = {"M": None}

Clock = Callable[[], datetime]


def record_of(clock: Clock, unique_id: str = "a", **fields: Any) -> Record:
    """Make a record under ``parent``, by default at the root."""
    parent = fields.get("parent", "")
    name = f"{parent}/operations/{unique_id}" if parent else f"operations/{unique_id}"
    known = {"parent": "", "method": "M", "create_time": clock(), "update_time": clock()}
    return Record(name=name, **{**known, **fields})


def held(clock: Clock, unique_id: str = "a", *, seconds: float = 15, **fields: Any) -> Record:
    """Make a record whose work the owner ``us`` has leased for ``seconds``."""
    lease = {"owner": "us", "lease_until": clock() + timedelta(seconds=seconds)}
    return record_of(clock, unique_id, **{**lease, **fields})


def worker_of(clock: Clock, owner: str = "us", *, seconds: float = 15) -> Worker:
    """Make a worker whose lease is renewed now and lasts for ``seconds``."""
    until = clock() + timedelta(seconds=seconds)
    return Worker(owner, "host", 1, "0.1.0", ("M",), 4, clock(), clock(), until)


def schedule_of(clock: Clock, name: str = "nightly", **fields: Any) -> Schedule:
    values: dict[str, Any] = {
        "method": "M",
        "expression": "0 3 * * *",
        "timezone": "Europe/Berlin",
        "tick": clock(),
        "next_tick": clock() + timedelta(days=1),
    }
    return Schedule(name=name, **(values | fields))


def waiting(clock: Clock, unique_id: str = "a", *, seconds: float = 0, **fields: Any) -> Record:
    """Make a record whose work is queued and due in ``seconds``."""
    return held(clock, unique_id, seconds=seconds, owner="", **fields)


def claim_work(
    store: Any,
    clock: Clock,
    most: int = 9,
    *,
    owner: str = "us",
    limits: Mapping[str, int | None] = ANY_NUMBER,
    **more: Any,
) -> Claimed:
    """Claim up to ``most`` queued operations of the sample method, with a lease of 15 seconds."""
    until = clock() + timedelta(seconds=15)
    found: Claimed = store.claim(Claim(owner, until, limits, most, **more))
    return found


def claimed(found: Claimed) -> list[str]:
    """Return the ids of the claimed operations."""
    return ids(record for record, _ in found.works)


def key_of(request_id: str = "r", fingerprint: str = "f", *, caller: str = "") -> RequestKey:
    """Make a request key of the sample method."""
    return RequestKey("M", caller, request_id, fingerprint)


def insert(
    store: Any, record: Record, key: RequestKey | None = None, *, check_only: bool = False
) -> Inserted:
    """Insert a record with the sample request."""
    found: Inserted = store.insert(record, REQUEST, key, check_only=check_only)
    return found


def end_of(clock: Clock, result: Any = DONE, days: float = 30) -> Change:
    """Return the change that ends an operation and keeps its record for ``days``."""
    return end(result, now=clock(), keep_for=timedelta(days=days))


def claim_of(clock: Clock, owner: str = "us", seconds: float = 0) -> Change:
    """Return the change by which an owner claims the work for ``seconds``."""
    return claim(owner, clock() + timedelta(seconds=seconds), clock())


def cancel_of(clock: Clock) -> Change:
    """Return the change that requests cancellation."""
    return request_cancel(clock())


def report_of(clock: Clock, metadata: AnyMessage | None) -> Change:
    """Return the change that reports this metadata."""
    return report(metadata, None, clock())


def insert_pending(store: Any, clock: Clock, *unique_ids: str) -> None:
    """Insert records of ended operations, each with a pending notification."""
    for unique_id in unique_ids:
        insert(store, record_of(clock, unique_id))
        store.update(f"operations/{unique_id}", with_derived(end_of(clock), sends=lambda _: True))


def removal(record: Record) -> None:
    """The change that removes a record."""


def called(name: str) -> Change:
    """Return a change that sets the caller, so that each change leaves a distinct trace."""
    return lambda record: record.next_version(caller=name)


def ids(records: Iterable[Record]) -> list[str]:
    """Return the ids of these records: the part of each name after ``operations/``."""
    return [record.name.partition("operations/")[2] for record in records]


def listed(store: Any) -> list[str]:
    """Return the sorted ids of all records at the root; read all pages."""
    found: list[str] = []
    page = store.page("", None, 100_000)
    found += ids(page.records)
    while page.reached is not None:
        page = store.page("", page.reached, 100_000)
        found += ids(page.records)
    return sorted(found)


def together(count: int, call: Callable[[int], object]) -> list[Any]:
    """Run ``call(0)`` to ``call(count - 1)`` concurrently; return their results or errors."""
    gate = threading.Barrier(count)
    found: list[object] = [None] * count

    def one(number: int) -> None:
        gate.wait(PATIENCE)
        try:
            found[number] = call(number)
        except Exception as exc:
            found[number] = exc

    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread)
    return found


@attrs.define
class Later:
    """Queues writes in a store and collects their results in the order of the calls."""

    store: Any
    _count: int = 0
    _over: SimpleQueue[tuple[int, Any]] = attrs.field(factory=SimpleQueue)

    def insert(self, record: Record, key: RequestKey | None = None) -> None:
        """Queue an insert with the sample request."""
        self.store.insert_later(record, REQUEST, key, self._done())

    def update(self, unique_id: str, change: Change) -> None:
        """Queue a change."""
        self.store.update_later(f"operations/{unique_id}", change, self._done())

    def checkpoint(self, unique_id: str, key: str, attempt: int = 0) -> None:
        """Queue the sample request as a checkpoint."""
        self.store.checkpoint_later(f"operations/{unique_id}", attempt, key, REQUEST, self._done())

    def all(self) -> list[Any]:
        """Return each queued write's result or error; check that each finished exactly once."""
        found = sorted((self._over.get(timeout=PATIENCE) for _ in range(self._count)), key=_first)
        assert self._over.empty()
        self._count = 0
        return [answer for _, answer in found]

    def _done(self) -> Done[Any]:
        number, self._count = self._count, self._count + 1
        return lambda answer, error: self._over.put((number, error or answer))


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]


def kinds(found: Iterable[object]) -> list[str]:
    """Return the class name of each error, and ``done`` for any other result."""
    return [type(one).__name__ if isinstance(one, BaseException) else "done" for one in found]


def made_later(store: Any, record: Record, key: RequestKey | None = None) -> Inserted:
    """Queue an insert and wait for it; return its result or raise its error."""
    later = Later(store)
    later.insert(record, key)
    return _answer(later)


def changed_later(store: Any, unique_id: str, change: Change) -> Any:
    """Queue a change and wait for it; return its result or raise its error."""
    later = Later(store)
    later.update(unique_id, change)
    return _answer(later)


def kept_later(store: Any, unique_id: str, key: str = "key", attempt: int = 0) -> None:
    """Queue a checkpoint and wait for it; raise its error if it fails."""
    later = Later(store)
    later.checkpoint(unique_id, key, attempt)
    _answer(later)


def _answer(later: Later) -> Any:
    (found,) = later.all()
    if isinstance(found, BaseException):
        raise found
    return found

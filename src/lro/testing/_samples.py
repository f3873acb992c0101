"""Helpers of the checks: a manual clock, sample records and changes, and a job for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping, Sequence
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

from lro._base.arguments import check
from lro._base.errors import OperationNotFound
from lro._base.status import AnyMessage, Status
from lro._engine.job import Job, job_alone
from lro._engine.limits import Limits
from lro._engine.store_port import Done, Inserted, RequestKey, Store, Worker
from lro._messages.registry import TypeRegistry, full_name
from lro._messages.shapes import is_message_class
from lro._model.operation import Change, Record, end

E = TypeVar("E", bound=Exception)

PATIENCE: Final = 10.0
"""Seconds after which a check fails if an expected event has not happened."""

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
"""The initial time of a new :class:`ManualClock`."""


class ManualClock:
    """A clock for tests: ``store = MemoryStore(clock)``, then ``clock.advance(5)``.

    Several threads may read and advance it.
    """

    def __init__(self, now: datetime = START) -> None:
        aware = isinstance(now, datetime) and now.tzinfo is not None
        check("now", now, "a datetime with a time zone", fine=aware)
        self._now = now
        self._lock = threading.Lock()

    def __call__(self) -> datetime:
        """Return the clock's time, in UTC."""
        with self._lock:
            return self._now

    def advance(self, seconds: float = 0, **more: float) -> datetime:
        """Advance by ``seconds``, and by any other argument of a timedelta, such as ``days=1``."""
        with self._lock:
            self._now += timedelta(seconds=seconds, **more)
            return self._now


def expect(kept: bool, promise: str) -> None:
    """Raise an AssertionError unless ``kept``; an ``assert`` would do nothing under ``-O``."""
    if not kept:
        raise AssertionError(promise)


def same(found: object, wanted: object, what: str) -> None:
    """Raise an AssertionError unless ``found`` equals ``wanted``."""
    expect(found == wanted, f"{what}: wanted {wanted!r}, found {found!r}")


def refuses(error: type[E], call: Callable[[], object], promise: str) -> E:
    """Return the error of this class that ``call`` raises; fail if the call returns."""
    try:
        answer = call()
    except error as exc:
        return exc
    raise AssertionError(f"{promise}: wanted {error.__name__}, found {answer!r}")


def together(count: int, call: Callable[[int], object]) -> list[object]:
    """Run ``call(0)`` to ``call(count - 1)`` concurrently; return their results or errors."""
    gate = threading.Barrier(count)
    found: list[object] = [None] * count

    def one(number: int) -> None:
        gate.wait()
        try:
            found[number] = call(number)
        except Exception as exc:
            found[number] = exc

    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def made_later(hand_in: Callable[[Done[Any]], None]) -> Any:
    """Queue a write and wait for it; return its result or raise its error."""
    over: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
    hand_in(lambda answer, error: over.put((answer, error)))
    answer, error = over.get(timeout=PATIENCE)
    expect(over.empty(), "a write is over once")
    if error is not None:
        raise error
    return answer


def job(
    publish: Callable[[Any], object] | None = None,
    *,
    metadata: object | None = None,
    checkpoints: MutableMapping[str, Any] | None = None,
    caller: str = "",
) -> Job[Any]:
    """Return a job without a time limit, for a test that calls a method's function directly.

    ``publish``, for example the ``append`` of a list, is called with each report, and an error that
    it raises is raised by ``job.report``. ``metadata`` is what callers see before the first report.
    The mapping ``checkpoints`` receives the values that the function stores, including results of
    steps. If the mapping is not empty, the job is a second attempt, which finds the values that the
    first attempt has stored. ``caller`` is the name of the caller who started the operation.
    """
    return job_alone(
        _AllTypes(),
        Limits(),
        publish=publish,
        metadata=metadata,
        checkpoints=checkpoints,
        caller=caller,
    )


class _AllTypes(TypeRegistry):
    """A registry that knows every message class, so that a test need not register classes."""

    def knows(self, cls: type) -> bool:
        known = super().knows(cls)
        if not known and (full_name(cls) or is_message_class(cls)):
            self.register(cls, f"test.v1.{cls.__name__}")
            return True
        return known


StoreCheck: TypeAlias = Callable[[Store, ManualClock], None]
"""A check of an empty store and its clock; it raises if the store breaks the promise."""

REQUEST: Final = AnyMessage(
    "type.googleapis.com/lro.testing.Request", {"text": "\u00dcn\u00ef \u2713 \U0001f600"}
)
METHODS: Final = frozenset({"M"})
"""The method of sample records, for :meth:`Store.orphans`."""
DONE: Final = AnyMessage("type.googleapis.com/lro.testing.Response", {})


def record_of(clock: ManualClock, unique_id: str = "a", **fields: Any) -> Record:
    """Return a new record under ``parent``, by default at the root."""
    parent = str(fields.get("parent", ""))
    name = f"{parent}/operations/{unique_id}" if parent else f"operations/{unique_id}"
    known = {"parent": "", "method": "M", "create_time": clock(), "update_time": clock()}
    return Record(name=name, **{**known, **fields})


def held(clock: ManualClock, unique_id: str = "a", *, seconds: float = 15, **fields: Any) -> Record:
    """Return a new record that the owner ``us`` works on, with a lease of ``seconds``."""
    lease = {"owner": "us", "lease_until": clock() + timedelta(seconds=seconds)}
    return record_of(clock, unique_id, **{**lease, **fields})


def worker_of(clock: ManualClock, owner: str = "us", *, seconds: float = 15) -> Worker:
    """Return a worker whose lease lasts for ``seconds`` from now."""
    return Worker(
        owner=owner,
        host="host-ü",
        pid=4_194_304,
        version="1.2.3",
        methods=("M", "a.v1.N"),
        capacity=None,
        start_time=clock(),
        seen_time=clock(),
        alive_until=clock() + timedelta(seconds=seconds),
    )


def key_of(
    request_id: str = "r", fingerprint: str = "f", *, method: str = "M", caller: str = ""
) -> RequestKey:
    """Return a request key, by default of the sample method."""
    return RequestKey(method, caller, request_id, fingerprint)


def insert(
    store: Store, record: Record, key: RequestKey | None = None, *, check_only: bool = False
) -> Inserted:
    """Insert a record with the sample request."""
    return store.insert(record, REQUEST, key, check_only=check_only)


def end_of(
    clock: ManualClock, result: AnyMessage | Status | None = DONE, days: float = 30
) -> Change:
    """Return the change that ends an operation and keeps its record for ``days``."""
    return end(result, now=clock(), keep_for=timedelta(days=days))


def ids(records: Sequence[Record]) -> list[str]:
    """Return the ids of these records: the part of each name after ``operations/``."""
    return [record.name.partition("operations/")[2] for record in records]


def gone(store: Store, name: str) -> None:
    """Fail if the store has a record with this name."""
    refuses(OperationNotFound, lambda: store.get(name), f"{name} is gone")

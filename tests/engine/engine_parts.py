"""Helpers of the engine's tests: methods, fake executors and workers, and maintenance."""

from __future__ import annotations

import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lro import Job, Options, Service
from lro._engine.maintenance import Maintenance
from lro._engine.runtime import FirstUse, RecordUpdater, Runtime
from lro.adapters import Worker
from lro.executors.inline import InlineExecutor
from tests.service_steps import WORK
from tests.stores.samples import worker_of
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

EACH_STORE = pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"], indirect=True)
LEASE = timedelta(seconds=15)
NAME = "acme.v1.Works.Work"
ID = "6f1c3b62-3c5e-4a53-9c1f-2b7f9a4d1e01"


def method_of(service: Service, body: Any = None, **options: Any) -> Any:
    """Register a method that returns `body`'s result or, if there is none, the request's text."""

    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        found = None if body is None else body(request, job)
        return WorkResponse(request.text) if found is None else found

    return service.method(NAME, **options)(work)


def declared(service: Service, name: str = NAME, **options: Any) -> Any:
    """Declare a method without a function. The test itself reports progress and ends operations."""
    classes = {"request": WorkRequest, "response": WorkResponse, "metadata": WorkMetadata}
    return service.declare(name, **{**classes, **options})


def totals(service: Service, method: str = WORK) -> dict[str, float]:
    """Flush the service's counts, and return a method's counts summed over all minutes."""
    assert service.statistics is not None
    assert service.statistics.flush()
    store: Any = service.store
    return counted(store).get(method, {})


def counted(store: Any) -> dict[str, dict[str, float]]:
    """Return each method's counts summed over all minutes in a store."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for one in store.read_counts(datetime(1970, 1, 1, tzinfo=UTC)):
        sums[one.method].update(one.counts)
    return {method: dict(found) for method, found in sums.items()}


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a function that takes any arguments and raises `error`."""

    def act(*_: object, **__: object) -> Any:
        raise error

    return act


def once(part: Any, name: str, act: Callable[..., object], *, after: bool = False) -> None:
    """Call `act` once before (or after) the next call of ``part.name``, with the same arguments."""
    whole = getattr(part, name)

    def call(*arguments: Any, **options: Any) -> Any:
        setattr(part, name, whole)
        if not after:
            act(*arguments)
        found = whole(*arguments, **options)
        if after:
            act(*arguments)
        return found

    setattr(part, name, call)


class Held(InlineExecutor):
    """An executor that collects tasks for the test to run. It has a free worker unless ``busy``."""

    def __init__(self, *, busy: bool = False) -> None:
        super().__init__()
        self.busy = busy
        self.tasks: list[Any] = []

    @property
    def task(self) -> Any:
        """The task that was submitted last."""
        return self.tasks[-1]

    def reserve(self) -> Any:
        return None if self.busy else super().reserve()

    def _run(self, task: Any) -> None:
        self.tasks.append(task)

    def join(self, seconds: float) -> bool:
        return False


class Apart(Held):
    """An executor that runs tasks in another thread than the one that claims them."""

    submits_block = False


class FakeWork:
    """A fake of a process's work. It holds names set by the test and records cancel requests."""

    owner = "us"
    skipped: frozenset[str] = frozenset()

    def __init__(self, clock: Callable[[], datetime], held: Iterable[str] = ()) -> None:
        self.clock = clock
        self.names = set(held)
        self.cancelled: list[str] = []
        self.stopping = False

    def held(self) -> frozenset[str]:
        return frozenset(self.names)

    def as_worker(self) -> Worker:
        return worker_of(self.clock, self.owner)

    def attempts(self) -> tuple[()]:
        return ()

    def cancel_held(self, name: str) -> None:
        self.cancelled.append(name)

    def release_queued(self) -> None:
        """Do nothing, because there is no work to release."""

    def announce_work(self) -> None:
        """Do nothing, because no worker claims work."""


def maintenance_over(
    store: Any,
    *,
    seconds: Callable[[], float] = lambda: 0.0,
    held: Iterable[str] = (),
    methods: Iterable[str] = (),
) -> Maintenance:
    """Create the maintenance of a process that holds the given operations."""
    runtime = Runtime(
        store=store,
        first_use=FirstUse(store),
        updater=RecordUpdater(store),
        executor=InlineExecutor(),
        lease=LEASE,
        domain="acme.example",
        clock=seconds,
    )
    plain = {"options": Options(), "keep_for": LEASE, "types": runtime.types, "stamp": None}
    specs: Any = {
        name: types.SimpleNamespace(full_name=name, function=print, **plain) for name in methods
    }
    workers: Any = FakeWork(store.now, held)
    return Maintenance(runtime, workers, specs)  # maintenance reads no other field of the specs

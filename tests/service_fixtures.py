"""Fixtures: a manual clock, stores of each kind, and services that are closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lro import Service
from lro.adapters import Executor, Store
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.testing import START, ManualClock
from tests.http.counting_service import CountService, build
from tests.service_steps import Step
from tests.services.postgres import shared_server, store_maker

MakeService = Callable[..., Service]


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that the test advances."""
    return ManualClock()


@contextmanager
def store_of(kind: str, clock: ManualClock, folder: Path) -> Iterator[Store]:
    """Open an empty store of this kind."""
    made: Store = MemoryStore(clock)
    if kind == "sqlite":
        made = SQLiteStore(folder / "operations.db", clock=clock)
    elif kind == "postgres":
        pytest.importorskip("psycopg")
        made = store_maker(shared_server())(clock)
    with closing(made):
        yield made


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Store]:
    """Open an empty store in memory and in SQLite; a test can also ask for PostgreSQL."""
    with store_of(request.param, clock, tmp_path) as made:
        yield made


@contextmanager
def services(clock: ManualClock) -> Iterator[MakeService]:
    """Yield a function that makes services without maintenance threads, by default in memory."""
    with ExitStack() as stack:

        def make(
            store: Store | None = None, executor: Executor | None = None, **options: Any
        ) -> Service:
            service = Service(
                store if store is not None else MemoryStore(clock),
                executor if executor is not None else ThreadExecutor(3),
                **{
                    "maintenance": False,
                    "domain": "acme.test",
                    "clock": lambda: (clock() - START).total_seconds(),
                    **options,
                },
            )
            stack.callback(service.close, timedelta(0))
            return service

        yield make


@pytest.fixture
def make_service(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[MakeService]:
    """Return a function that makes services. After the test, close them, and then their store."""
    if "store" in request.fixturenames:
        request.getfixturevalue("store")
    with services(clock) as make:
        yield make


@pytest.fixture
def counting() -> CountService:
    """Return a service of counting methods with a store in memory."""
    return build()


@pytest.fixture
def step() -> Step:
    """Return a function that pauses in the middle."""
    return Step()

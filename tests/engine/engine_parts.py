"""Parts of the engine alone: what stands in for the work of a process, and what is made over it."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from lro._engine.maintenance import Maintenance
from lro._engine.runtime import FirstUse, RecordUpdater, Runtime
from lro.executors.inline import InlineExecutor

LEASE = timedelta(seconds=15)


class FakeWorkers:
    """The work of a process: the names that the test puts in, and the requests to cancel."""

    owner = "us"

    def __init__(self, held: Iterable[str] = ()) -> None:
        self.names = set(held)
        self.cancelled: list[str] = []

    def held(self) -> frozenset[str]:
        return frozenset(self.names)

    def cancel_held(self, name: str) -> None:
        self.cancelled.append(name)

    def release_not_started(self) -> None:
        """Nothing failed to begin."""


def maintenance_over(
    store: Any,
    *,
    seconds: Callable[[], float] = lambda: 0.0,
    held: Iterable[str] = (),
    methods: Iterable[str] = (),
    recover: Callable[[Any], None] | None = None,
) -> Maintenance:
    """The maintenance of a store by a process that holds this work; ``recover`` gets orphans."""
    runtime = Runtime(
        store=store,
        first_use=FirstUse(store),
        updater=RecordUpdater(store),
        executor=InlineExecutor(),
        lease=LEASE,
        domain="acme.example",
        clock=seconds,
    )
    specs = {name: types.SimpleNamespace(function=print) for name in methods}
    workers: Any = FakeWorkers(held)
    made = Maintenance(runtime, workers, specs)  # type: ignore[arg-type]  # no more is asked of them
    if recover is not None:
        made.recover = recover  # type: ignore[method-assign]
    return made

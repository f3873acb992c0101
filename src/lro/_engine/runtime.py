"""What the parts of one service share: its store, its executor, and how long a lease lasts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import attrs

from lro._base.errors import Unavailable
from lro._engine.executor_port import Executor
from lro._engine.notifier import RecordUpdater
from lro._engine.store_port import Store


@attrs.frozen(kw_only=True)
class Runtime:
    """What every part of one service works with.

    ``domain`` names the service in error details. ``clock`` gives the seconds that maintenance,
    time limits and pages go by; nobody can set it. The store has a clock of its own.
    """

    store: Store
    updater: RecordUpdater
    executor: Executor
    lease: timedelta
    domain: str
    clock: Callable[[], float]


def stopping() -> Unavailable:
    """Return the error of calls that a closing service refuses, or stops waiting for."""
    return Unavailable("the service is stopping")

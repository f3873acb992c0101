"""Records and who waits for them: who is woken by which change, and who is told of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lro._base.any import Any
from lro._engine.notifier import Notifier
from lro._engine.record_updater import RecordUpdater
from lro._model.record import Record
from lro._model.transitions import claim, delete, end, report, request_cancel
from lro.stores.memory import MemoryStore

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=15)
NAME = "operations/a"


class Told(MemoryStore):
    """Keeps the names that were announced."""

    def __init__(self):
        super().__init__(lambda: NOW)
        self.announced = []

    def notify_others(self, name):
        self.announced.append(name)


CHANGES = {
    "claim": ((claim("us", NOW + LEASE, NOW),), False),
    "report": ((report(Any("x/T", {}), None, NOW),), False),
    "cancel": ((request_cancel(NOW),), False),
    "end": ((end(None, now=NOW, expiry=LEASE),), True),
    "delete while work goes on": ((delete(NOW),), True),
    "delete": ((end(None, now=NOW, expiry=LEASE), delete(NOW)), True),
}


@pytest.mark.parametrize(("changes", "wakes"), CHANGES.values(), ids=CHANGES)
def test_waiters_are_woken_by_an_end_and_others_told_of_every_change(changes, wakes):
    """Progress is no news to who waits here; another process may want to know it."""
    store, rung = Told(), []
    updater = RecordUpdater(store, Notifier())
    record = Record(
        name=NAME, parent="", method="M", create_time=NOW, update_time=NOW, lease_until=NOW
    )
    store.insert(record, Any("x/T", {}), None)
    for change in changes[:-1]:
        updater.apply(NAME, change)
    updater.notifier.listen(NAME, lambda: rung.append(NAME))
    updater.apply(NAME, changes[-1])
    assert rung == [NAME] * wakes
    assert store.announced == [NAME] * len(changes)

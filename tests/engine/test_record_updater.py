"""The record updater: which change notifies listeners, here and in other processes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lro import Any
from lro._engine.runtime import RecordUpdater
from lro._model.operation import claim, delete, end, report, request_cancel
from lro.adapters import Record
from lro.stores.memory import MemoryStore

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=15)
NAME = "operations/a"


class AnnouncingStore(MemoryStore):
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
    "end": ((end(None, now=NOW, keep_for=LEASE),), True),
    "delete while work goes on": ((delete(NOW),), True),
    "delete": ((end(None, now=NOW, keep_for=LEASE), delete(NOW)), True),
}


@pytest.mark.parametrize(("changes", "ended"), CHANGES.values(), ids=CHANGES)
def test_every_change_is_notified_here_and_elsewhere(changes, ended):
    """Listeners here learn whether it may have ended; other processes learn the name."""
    store, ends = AnnouncingStore(), []
    updater = RecordUpdater(store)
    record = Record(
        name=NAME, parent="", method="M", create_time=NOW, update_time=NOW, lease_until=NOW
    )
    store.insert(record, Any("x/T", {}), None)
    for change in changes[:-1]:
        updater.apply(NAME, change)
    updater.notifier.listen(NAME, ends.append)
    updater.apply(NAME, changes[-1])
    assert ends == [ended]
    assert store.announced == [NAME] * len(changes)


def test_listeners_of_the_parent_are_forgotten_after_fork():
    """Each record has its listeners, until they leave or the process is a forked child."""
    updater, seen = RecordUpdater(AnnouncingStore()), []
    updater.notifier.listen(NAME, seen.append)
    assert (bool(updater.notifier), updater.notifier.names()) == (True, {NAME})
    updater.notifier.notify_all()
    updater.reset_after_fork()
    updater.notifier.notify(NAME)
    assert (bool(updater.notifier), seen) == (False, [True])

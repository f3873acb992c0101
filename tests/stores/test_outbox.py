"""What stores owe beyond their contract: several processes, bounded reads, and what is cached."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from lro._engine.store_port import keeps_outbox
from lro._model.operation import settle_notifications, with_debt
from lro.adapters import OutboxStore, Record
from lro.errors import LeaseLost
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock, run_store_check
from lro.testing._owing import an_end_owes_notifications
from tests.places import Place
from tests.stores.samples import end_of, insert, record_of


def owing(store: Any, clock: Any, *unique_ids: str) -> None:
    """Put in records that have ended and owe a notification."""
    for unique_id in unique_ids:
        insert(store, record_of(clock, unique_id))
        store.update(f"operations/{unique_id}", with_debt(end_of(clock), lambda _: True))


def test_what_another_process_has_claimed_or_settled_is_not_cached(place: Place) -> None:
    """A record that callers ask for again and again is kept; a claim makes it another."""
    clock = ManualClock()
    with closing(place.open(clock)) as ours, closing(place.open(clock)) as theirs:
        owing(ours, clock, "a")
        for _ in range(2):
            before: Record = ours.get("operations/a")
            assert before.notify_at == clock()
        (claimed,) = theirs.claim_due(clock() + timedelta(seconds=9), 9)
        assert ours.get("operations/a") == claimed
        assert list(ours.find(["operations/a"]).records) == [claimed]
        assert list(ours.claim_due(clock() + timedelta(seconds=9), 9)) == []
        with pytest.raises(LeaseLost):
            ours.update(before.name, settle_notifications(before, "", None))
        after = theirs.update(before.name, settle_notifications(claimed, "", None))
        assert ours.get("operations/a") == after
        assert list(ours.find(["operations/a"]).records) == [after]
        assert after.operation == before.operation
        assert ours.next_due() is theirs.next_due() is None


def test_a_store_without_both_methods_keeps_no_outbox() -> None:
    """Both are needed."""

    class Half(MemoryStore):
        next_due = property()  # type: ignore[assignment]

    store: OutboxStore = MemoryStore()
    assert keeps_outbox(store)
    assert not keeps_outbox(Half())
    run_store_check(an_end_owes_notifications, Half)  # which has nothing to check there

"""Glances and announcements: what every store promises to those who wait."""

from __future__ import annotations

import threading
from datetime import timedelta

from lro._base.errors import Unavailable
from lro._base.status import Code, Status
from lro._engine.store_port import StateSummary, Store
from lro._model.transitions import delete, request_cancel
from lro.testing._clock import ManualClock, expect, refuses, same
from lro.testing._samples import end_of, held, insert, record_of


def a_glance_tells_what_is_over(store: Store, clock: ManualClock) -> None:
    """Done however it ended, deleted, hidden, expired or never there; the rest is not named."""
    for unique_id in ("running", "done", "failed", "deleted", "expired"):
        insert(store, record_of(clock, unique_id))
    insert(store, held(clock, "hidden", target="t"))
    store.update("operations/done", end_of(clock))
    store.update("operations/failed", end_of(clock, Status(Code.ABORTED, "")))
    store.update("operations/expired", end_of(clock, days=1))
    for unique_id in ("deleted", "hidden"):
        store.update(f"operations/{unique_id}", delete(clock()))
    clock.advance(days=1)
    over = {f"operations/{id_}" for id_ in ("done", "failed", "deleted", "expired", "hidden", "no")}
    found = store.poll_states([*over, "operations/running"])
    same(found, StateSummary(frozenset(over), frozenset()), "the states")
    same(store.poll_states(()), StateSummary(frozenset(), frozenset()), "the states of no names")
    same(store.poll_states({"operations/running"}).finished, frozenset(), "the one in progress")


def a_glance_tells_who_is_asked_to_cancel(store: Store, clock: ManualClock) -> None:
    """Until the work has ended; also where its record is hidden."""
    for unique_id in "abc":
        insert(store, held(clock, unique_id))
        store.update(f"operations/{unique_id}", request_cancel(clock()))
    insert(store, record_of(clock, "quiet"))
    store.update("operations/b", delete(clock()))
    store.update("operations/c", end_of(clock))
    names = [f"operations/{unique_id}" for unique_id in ("a", "b", "c", "quiet")]
    same(store.poll_states(names).cancel_requested, frozenset(names[:2]), "those asked to cancel")


def many_are_seen_in_one_glance(store: Store, clock: ManualClock) -> None:
    """More than a statement could have parameters, odd characters in their names."""
    names = [f"operations/{n}\u2603'\"\\,{{}}" for n in range(3000)]
    insert(store, record_of(clock, names[7].removeprefix("operations/")))
    same(
        store.poll_states(names).finished, frozenset(names) - {names[7]}, "those that are not there"
    )


def announcements_are_harmless(store: Store, clock: ManualClock) -> None:
    """Of anything, at any time, also of what is gone; they change no record."""
    record = record_of(clock)
    insert(store, record)
    for name in (record.name, record.name, "operations/x", "projects/\u2603/operations/y"):
        store.notify_others(name)
    same(store.get(record.name), record, "the record")


def an_ear_keeps_to_its_time(store: Store, clock: ManualClock) -> None:
    """Without a change it answers when its seconds are over, or that anything may have changed."""
    insert(store, record_of(clock))
    subscription = store.listen()
    changes = subscription.next_changes(0)
    expect(changes is None or len(changes) == 0, "nothing has changed in no time")
    subscription.close()
    subscription.close()


def a_closed_ear_hears_no_longer(store: Store, clock: ManualClock) -> None:  # noqa: ARG001
    """Who listens in another thread is let go soon, with or without an error."""
    subscription = store.listen()
    began = threading.Event()

    def hear() -> None:
        began.set()
        try:
            subscription.next_changes(600)
        except Unavailable:
            pass

    listener = threading.Thread(target=hear, daemon=True)
    listener.start()
    began.wait()
    subscription.close()
    listener.join(10)
    expect(not listener.is_alive(), "the listener is let go")


def a_closed_store_has_no_ears(store: Store, clock: ManualClock) -> None:
    """It announces nothing, without an error; a subscription is refused, or gives nothing."""
    insert(store, held(clock, seconds=timedelta(minutes=1).total_seconds()))
    store.close()
    store.notify_others("operations/a")
    if store.shared:
        refuses(
            Unavailable, lambda: store.listen().next_changes(0), "a subscription to a closed store"
        )

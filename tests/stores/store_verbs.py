"""A call of each store method that uses the database, to test failures of the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.stores.samples import (
    METHODS,
    REQUEST,
    Clock,
    called,
    changed_later,
    claim_work,
    insert,
    kept_later,
    key_of,
    made_later,
    record_of,
    removal,
    schedule_of,
    worker_of,
)


def verbs(store: Any, clock: Clock) -> Mapping[str, Callable[[], Any]]:
    """Return a call for each method that reads or writes; the changes go to ``operations/a``."""
    name = "operations/a"
    return {
        "get": lambda: store.get(name),
        "find": lambda: store.find([name], 1_000_000),
        "request": lambda: store.request(name),
        "page": lambda: store.page("", None, 9),
        "insert": lambda: insert(store, record_of(clock, "b")),
        "insert with a key": lambda: insert(store, record_of(clock, "c"), key_of("c")),
        "check": lambda: insert(store, record_of(clock, "d"), key_of("d"), check_only=True),
        "insert_later": lambda: made_later(store, record_of(clock, "later")),
        "update": lambda: store.update(name, called("x")),
        "update_later": lambda: changed_later(store, "a", called("y")),
        "checkpoint": lambda: store.checkpoint(name, 0, "key", REQUEST),
        "checkpoint_later": lambda: kept_later(store, "a"),
        "checkpoints": lambda: store.checkpoints(name),
        "remove": lambda: store.update(name, removal),
        "claim": lambda: claim_work(store, clock),
        "claim within a limit": lambda: claim_work(store, clock, limits={"M": 2}),
        "count_waiting": lambda: store.count_waiting(9),
        "pause": lambda: store.pause("other"),
        "resume": lambda: store.resume("other"),
        "paused": lambda: store.paused(),
        "renew": lambda: store.renew(worker_of(clock)),
        "leave": lambda: store.leave("us"),
        "lose": lambda: store.lose("us", clock()),
        "workers": lambda: store.workers(),
        "waiting": lambda: store.waiting(),
        "orphans": lambda: store.orphans(METHODS, 9),
        "expire": lambda: store.expire(9),
        "poll_states": lambda: store.poll_states([name]),
        "add_counts": lambda: store.add_counts(clock(), {"M": {"a": 1}}),
        "read_counts": lambda: store.read_counts(clock()),
        "read_load": lambda: store.read_load([""], 9),
        "claim_due": lambda: store.claim_due(clock(), 9),
        "next_due": lambda: store.next_due(),
        "schedules": lambda: store.schedules(),
        "note_tick": lambda: store.note_tick(schedule_of(clock)),
        "listen": lambda: store.listen(),
    }


def errors_of(store: Any, clock: Clock) -> Mapping[str, str]:
    """Call every method; map the name of each method that fails to the class of its error."""
    found = {}
    for verb, call in verbs(store, clock).items():
        try:
            answer = call()
        except Exception as exc:
            found[verb] = type(exc).__name__
        else:
            if verb == "listen":
                answer.close()
    return found

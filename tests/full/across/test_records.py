"""The same store calls leave equal records in memory, in SQLite and in PostgreSQL.

Each database has two stores, as two processes would have. Calls alternate between the stores, so
that an outdated record in one store's cache would be found.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from lro import AnyMessage, Code, LroError, Status
from lro._model import operation as states
from lro.adapters import Claim, Cursor, Record, RequestKey
from lro.errors import OperationNotFound
from lro.stores._rows import to_row
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from tests.services.emptied import Emptied
from tests.services.postgres import shared_server
from tests.stores.samples import worker_of

OWNERS = ["us", "them"]
METHODS = ["M", "N"]
PARENTS = ["", "projects/p"]
URL = "type.googleapis.com/acme.v1.Thing"
MESSAGES = [
    None,
    AnyMessage(URL, {"n": 1}),
    AnyMessage(URL, {"n": 1.0}),
    AnyMessage(URL, {"n": True, "a": "\u00dc\u2603\U0001f600'\"\\"}),
    AnyMessage(URL, b"\x00\xff"),
]
RESULTS = [
    *MESSAGES,
    Status(Code.ABORTED, "failed"),
    Status(Code.CANCELLED, "stopped", (AnyMessage(URL, {"detail": [1, None]}),)),
]
LOST = Status(Code.ABORTED, "its worker was lost")
CANCELLED = Status(Code.CANCELLED, "cancelled")
STARTS = st.fixed_dictionaries(
    {
        "method": st.sampled_from(METHODS),
        "parent": st.sampled_from(PARENTS),
        "lease": st.sampled_from(["outside", "waits", "due", "us", "them"]),
        "target": st.sampled_from(["", "", "", "t"]),
        "key": st.none() | st.tuples(st.just("c"), st.just("i"), st.sampled_from("fffg")),
        "metadata": st.sampled_from(MESSAGES),
        "check_only": st.sampled_from([False, False, False, True]),
    }
)
WHICH = st.integers(0, 11)
"""The number of an existing record; the highest number may also select a removed record."""
EXPIRY = timedelta(hours=2)
LEASE = timedelta(seconds=15)


CHANGES = {
    "delete": lambda now, owner, attempt, metadata: states.delete(now),
    "claim": lambda now, owner, attempt, metadata: states.claim(owner, now + LEASE, now),
    "abandon": lambda now, owner, attempt, metadata: states.end(
        LOST, now=now, keep_for=EXPIRY, attempt=attempt
    ),
    "withdraw": lambda now, owner, attempt, metadata: states.withdraw(CANCELLED, now, EXPIRY),
    "lose": lambda now, owner, attempt, metadata: states.lose(attempt or 1, now + LEASE, now),
    "release": lambda now, owner, attempt, metadata: states.release(attempt or 1, now),
    "report": lambda now, owner, attempt, metadata: states.report(
        metadata or MESSAGES[1], attempt, now
    ),
    "cancel": lambda now, owner, attempt, metadata: states.request_cancel(now),
}
"""Changes of a record, each made from the time, an owner, an attempt and metadata."""
HOW = st.sampled_from(sorted(CHANGES))
OWNER = st.sampled_from(OWNERS)
LATE = st.sampled_from([None, 0, 0, 1])
MESSAGE = st.sampled_from(MESSAGES)


def shown(answer):
    """Return a store's result in a form that can be compared exactly, including types."""
    if isinstance(answer, Record):
        return to_row(answer)
    if isinstance(answer, (list, tuple)):
        return [shown(one) for one in answer]
    if isinstance(answer, AnyMessage):
        return answer.type_url, repr(answer.payload)
    return answer


class Kept(RuleBasedStateMachine):
    """Calls each rule on all stores; the results must be equal, and afterwards all records."""

    def __init__(self, postgres=None):
        super().__init__()
        self.clock = ManualClock()
        self.exit = contextlib.ExitStack()
        folder = Path(self.exit.enter_context(tempfile.TemporaryDirectory()))
        memory = MemoryStore(self.clock)
        self.stores = {"memory": (memory, memory)}
        file = folder / "operations.db"
        self.stores["sqlite"] = tuple(SQLiteStore(file, clock=self.clock) for _ in OWNERS)
        if postgres is not None:
            self.stores["postgres"] = postgres(self.clock)
        for pair in self.stores.values():
            for store in pair:
                self.exit.callback(store.close)
        self.names = []
        self.calls = 0

    def teardown(self):
        self.exit.close()

    def all(self, call, read=shown):
        """Make a call on every store; return the result, which must be equal on all stores."""
        self.calls += 1
        found = {}
        for kind, pair in self.stores.items():
            try:
                found[kind] = read(call(pair[self.calls % 2]))
            except LroError as exc:
                found[kind] = type(exc).__name__, exc.args
        wanted = found["memory"]
        assert all(one == wanted for one in found.values()), found
        return wanted

    def update(self, which, change):
        """Apply a change to a record on every store."""
        name = self.name(which)
        return self.all(lambda store: store.update(name, change))

    def of(self, name):
        """Return the record in the memory store, or None."""
        try:
            return self.stores["memory"][0].get(name)
        except OperationNotFound:
            return None

    def name(self, which):
        """Return the name of the record that a number selects."""
        there = self.names if which == 11 else [name for name in self.names if self.of(name)]
        return there[which % len(there)] if there else "operations/never"

    # -- inserts and removals -----------------------------------------------------------------

    @initialize(given=st.lists(STARTS, min_size=2, max_size=4))
    def begin(self, given):
        for start in given:
            self.insert(start)

    @rule(given=STARTS)
    def insert(self, given):
        now = self.clock()
        parent, lease, key = given["parent"], given["lease"], given["key"]
        number = len(self.names)
        id_ = hashlib.sha256(b"%d" % number).hexdigest()[:12]  # so that names are in random order
        record = Record(
            name=f"{parent}/operations/{id_}" if parent else f"operations/{id_}",
            parent=parent,
            method=given["method"],
            metadata=given["metadata"],
            create_time=now,
            update_time=now,
            owner=lease if lease in OWNERS else "",
            lease_until={"outside": None, "due": now}.get(lease, now + LEASE),
            caller=key[0] if key else "",
            request_id=key[1] if key else "",
            target=given["target"],
        )
        request = AnyMessage(URL, {"number": number})
        full = key and RequestKey(record.method, *key)
        found = self.all(
            lambda store: store.insert(record, request, full, check_only=given["check_only"]),
            lambda one: (shown(one.record), one.fresh),
        )
        if found[1] is True and not given["check_only"]:
            self.names.append(record.name)

    @rule(seconds=st.sampled_from([1e-6, 5, 15, 3600, 7200, 79_200, 86_400]))
    def advance(self, seconds):
        self.clock.advance(seconds=seconds)

    @rule(seconds=st.sampled_from([0, 7200, 86_400]), at_once=st.sampled_from([1, 1000]))
    def expire(self, seconds, at_once):
        self.clock.advance(seconds)

        def sweep(store):
            names, methods, more = [], [], True
            while more:
                found = store.expire(at_once)
                assert len(found.names) <= at_once
                names += found.names
                methods.append(found.methods)
                more = found.more
            return sorted(names), methods if at_once > 1 else len(methods)

        self.all(sweep, lambda found: found)

    # -- work ---------------------------------------------------------------------------------

    @rule(changes=st.lists(st.tuples(WHICH, HOW, OWNER, LATE, MESSAGE), min_size=1))
    def change(self, changes):
        for which, how, owner, late, metadata in changes:
            record = self.of(self.name(which))
            attempt = record.attempt - late if record and late is not None else None
            self.update(which, CHANGES[how](self.clock(), owner, attempt, metadata))

    @rule(
        which=WHICH,
        result=st.sampled_from(RESULTS),
        late=LATE,
        metadata=MESSAGE,
        acknowledge=st.sampled_from([False, False, True]),
    )
    def end(self, which, result, late, metadata, acknowledge):
        record = self.of(self.name(which))
        end = states.end(
            result,
            now=self.clock(),
            keep_for=EXPIRY,
            attempt=record.attempt - late if record and late is not None else None,
            metadata=metadata,
            acknowledge=acknowledge and isinstance(result, Status),
        )
        self.update(which, end)

    @rule(owner=st.sampled_from(["us", "us", "them"]))
    def renew(self, owner):
        def read(found):
            return found and (sorted(found.cancel_requested), sorted(found.older))

        self.all(lambda store: store.renew(worker_of(self.clock, owner)), read)

    @rule(owner=st.sampled_from(["us", "them"]), known=st.booleans())
    def lose(self, owner, known):
        seen = {worker.owner: worker.alive_until for worker in self.workers()}
        until = seen.get(owner) if known else self.clock()
        self.all(lambda store: store.lose(owner, until))

    @rule(owner=st.sampled_from(["us", "them"]))
    def leave(self, owner):
        self.all(lambda store: store.leave(owner))

    @rule()
    def look_at_workers(self):
        self.workers()

    def workers(self):
        return self.all(
            lambda store: store.workers(),
            lambda found: [attrs.evolve(w, methods=tuple(w.methods)) for w in found],
        )

    @rule(
        owner=st.sampled_from(["us", "us", "them", ""]),
        limits=st.dictionaries(
            st.sampled_from([*METHODS, "O"]), st.sampled_from([None, None, 1, 2, 3])
        ),
        most=st.integers(0, 3),
        without=st.lists(WHICH, max_size=2),
        only=st.none() | WHICH,
        seconds=st.sampled_from([0, 5, 15]),
    )
    def claim(self, owner, limits, most, without, only, seconds):
        self.clock.advance(seconds)
        given = Claim(
            owner=owner,
            lease_until=self.clock() + LEASE,
            limits=limits,
            max_count=most,
            excluded=[self.name(which) for which in without],
            name="" if only is None else self.name(only),
        )
        self.all(
            lambda store: store.claim(given),
            lambda found: (shown(found.works), found.more, found.next_due),
        )

    # -- reading ------------------------------------------------------------------------------

    @rule(methods=st.sampled_from([METHODS, ["M"], []]), seconds=st.sampled_from([0, 5, 15]))
    def orphans(self, methods, seconds):
        self.clock.advance(seconds)

        def read(found):
            records = sorted(map(to_row, found.records))
            return records, sorted(found.overdue.items())

        everything = self.all(lambda store: store.orphans(methods, 1000), read)
        few = self.all(lambda store: store.orphans(methods, 2), lambda found: len(found.records))
        assert few == min(2, len(everything[0]))

    @rule(names=st.lists(WHICH, max_size=6))
    def poll_states(self, names):
        asked = {"operations/never", *map(self.name, names)}
        self.all(lambda store: store.poll_states(asked))

    @rule(parent=st.sampled_from(PARENTS), limit=st.integers(1, 3))
    def page(self, parent, limit):
        def walk(store):
            found, after = [], None
            while some := store.page(parent, after, limit).records:
                assert len(some) <= limit
                found += some
                after = Cursor(some[-1].create_time, some[-1].name)
            return found

        self.all(walk)

    @invariant()
    def equal_records(self):
        """Compare all columns of all records, and the requests of unfinished records."""
        for name in self.names:
            self.all(lambda store, name=name: store.get(name))
            self.all(lambda store, name=name: store.request(name))


def run_traces(examples: int, steps: int = 40, **options: Any) -> None:
    """Run ``examples`` sequences of ``steps`` calls, with ``options`` as settings of Hypothesis."""
    with contextlib.closing(Emptied(shared_server(), 2)) as pair:
        run_state_machine_as_test(
            lambda: Kept(pair),
            settings=settings(
                max_examples=examples, stateful_step_count=steps, deadline=None, **options
            ),
        )


def test_records_are_equal_on_every_store():
    """Random calls leave equal records in memory, SQLite and PostgreSQL."""
    run_traces(25)

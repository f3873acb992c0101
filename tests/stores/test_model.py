"""Any trace of calls gives the same on every store, and what a small pure model says."""

from __future__ import annotations

import contextlib
import tempfile
from datetime import timedelta
from typing import Any
from unittest import mock

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from lro import Code, ListOperationsRequest, LroError, Service, Status
from lro._engine.store_port import DEBT_LIFE
from lro._model.operation import settle_notifications
from lro.executors.inline import InlineExecutor
from lro.stores._rows import to_row
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.testing import START, ManualClock
from lro.webhooks import Endpoint
from tests.noted_ends import NotedEnds
from tests.services.emptied import Emptied
from tests.services.postgres import shared_server
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

EXPIRY = timedelta(hours=2)
REQUEST_LIFE = timedelta(hours=24)
ENDPOINT = Endpoint(url="https://hooks.acme.test/done")
IDS = [f"00000000-0000-4000-8000-00000000000{number}" for number in (1, 2)]


@attrs.define
class Known:
    """An operation, as the model knows it."""

    name: str
    target: str
    created: object
    notifies: bool = False
    state: str = "IN_PROGRESS"
    percent: int = 0
    code: int = 0
    cancel_requested: bool = False
    expires: object = None
    deleted: bool = False
    due: object = None

    @property
    def running(self):
        return self.state == "IN_PROGRESS"

    def visible(self, now):
        return not self.deleted and (self.expires is None or now < self.expires)

    def answer(self):
        return self.name, self.state, self.percent, self.code

    def first_answer(self):
        return self.name, "IN_PROGRESS", 0, 0


class Model:
    """What the specification says, without locks, stores or clocks."""

    def __init__(self):
        self.known = {}
        self.keys = {}

    def start(self, name, size, key, target, now, notifies=False):
        first = self.keys.get(key) if key else None
        if first and now - first[2] < REQUEST_LIFE:
            if first[1] != size:
                return "INVALID_ARGUMENT"
            one = first[0]
            return one.answer() if one.visible(now) else one.first_answer()
        if target and any(one.target == target and one.running for one in self.known.values()):
            return "ABORTED"
        one = self.known[name] = Known(name, target, now, notifies)
        if key:
            self.keys[key] = (one, size, now)
        return one.answer()

    def seen(self, name, now):
        one = self.known.get(name)
        return one if one and one.visible(now) else None

    def get(self, name, now):
        one = self.seen(name, now)
        return one.answer() if one else "NOT_FOUND"

    def list(self, now):
        seen = [one for one in self.known.values() if one.visible(now)]
        seen.sort(key=lambda one: one.name)
        seen.sort(key=lambda one: one.created, reverse=True)
        return [one.answer() for one in seen]

    def cancel(self, name, now):
        one = self.seen(name, now)
        if one and one.running:
            one.cancel_requested = True
        return None if one else "NOT_FOUND"

    def delete(self, name, now):
        one = self.seen(name, now)
        if not one:
            return "NOT_FOUND"
        one.deleted = True
        if not (one.running and one.target):
            del self.known[name]
        return None

    def report(self, name, percent):
        one = self.known.get(name)
        if not one or not one.running or one.deleted:
            return False
        one.percent = percent
        return True

    def end(self, name, code, now, *, acknowledge=False):
        one = self.known.get(name)
        if not one or not one.running:
            return False
        if acknowledge and not one.cancel_requested:
            return "FAILED_PRECONDITION"
        if one.deleted:
            del self.known[name]
            one.state = "GONE"
            return False
        one.code = code
        one.state = {0: "SUCCEEDED", 1: "CANCELLED"}.get(code, "FAILED")
        one.expires = now + EXPIRY
        one.due = now if one.notifies else None
        return True

    def owing(self, now, kept=timedelta(0)):
        """What is due now, as far as it is there for sure ``kept`` after its expiry."""
        return {
            one.name
            for one in self.known.values()
            if one.due is not None and one.due <= now and now < one.expires + kept
        }


class Traces(RuleBasedStateMachine):
    """Every rule calls all services and the model, and compares.

    ``more`` makes further stores, empty ones, by a clock.
    """

    operations = Bundle("operations")

    def __init__(self, more=lambda clock: ()):
        super().__init__()
        self.clock = ManualClock()
        self.folder = tempfile.TemporaryDirectory()
        stores = [
            MemoryStore(self.clock),
            SQLiteStore(f"{self.folder.name}/operations.db", clock=self.clock),
            *more(self.clock),
        ]
        self.services = [
            Service(
                store,
                InlineExecutor(),
                maintenance=False,
                keep_for=EXPIRY,
                webhooks=NotedEnds(lambda record: record.notify != ""),
                clock=self.seconds,
            )
            for store in stores
        ]
        self.methods = [
            service.declare(
                "acme.v1.Works.Work",
                request=WorkRequest,
                response=WorkResponse,
                metadata=WorkMetadata,
            )
            for service in self.services
        ]
        self.model = Model()
        self.count = 0
        self.claimed = [{} for _ in stores]

    def seconds(self):
        """What maintenance goes by."""
        return (self.clock() - START).total_seconds()

    def teardown(self):
        for service in self.services:
            service.close()
        self.folder.cleanup()

    def answer(self, operation):
        """What the model knows of an operation."""
        metadata = self.services[0].types.unpack(operation.metadata, WorkMetadata)
        code = operation.error.code if operation.error else 0
        return operation.name, operation.state, metadata.percent, code

    def all(self, call, wanted):
        """All services answer as the model does."""
        for service, method in zip(self.services, self.methods, strict=True):
            try:
                found = call(service, method)
            except LroError as exc:
                found = exc.code.name
            assert found == wanted, type(service.store).__name__

    @rule(
        target=operations,
        size=st.integers(1, 2),
        request_id=st.sampled_from(["", *IDS]),
        caller=st.sampled_from(["", "käthe"]),
        wanted=st.sampled_from(["", "", "t", "u"]),
        notifies=st.booleans(),
    )
    def start(self, size, request_id, caller, wanted, notifies):
        self.count += 1
        name = f"operations/{self.count:03d}"
        key = (caller, request_id) if request_id else None
        expected = self.model.start(name, size, key, wanted, self.clock(), notifies)

        def call(_, method):
            started = method.start(
                WorkRequest(size=size),
                request_id=request_id.upper() if self.count % 2 else request_id,
                caller=caller,
                target=wanted,
                metadata=WorkMetadata(),
                notify=[ENDPOINT] if notifies else (),
            )
            return self.answer(started.operation)

        with mock.patch("lro._engine.methods.new_id", return_value=f"{self.count:03d}"):
            self.all(call, expected)
        return name if expected[0] == name else multiple()

    @rule(name=operations)
    def get(self, name):
        wanted = self.model.get(name, self.clock())
        self.all(lambda service, _: self.answer(service.get(name)), wanted)

    @rule(name=operations)
    def wait(self, name):
        wanted = self.model.get(name, self.clock())
        self.all(lambda service, _: self.answer(service.wait(name, timedelta())), wanted)

    @rule()
    def batch(self):
        """All at once, each as a Get gives it; what a Get does not find is missing."""
        names = [f"operations/{number:03d}" for number in range(self.count + 2)]
        found = [self.model.get(name, self.clock()) for name in names]
        missing = [name for name, one in zip(names, found, strict=True) if one == "NOT_FOUND"]
        wanted = [one for one in found if one != "NOT_FOUND"], missing

        def call(service, _):
            batch = service.batch_get(names)
            return [self.answer(one) for one in batch.operations], [*batch.missing]

        self.all(call, wanted)

    @rule(size=st.integers(0, 3))
    def list(self, size):
        wanted = self.model.list(self.clock())

        def call(service, _):
            found, token = [], ""
            while True:
                request = ListOperationsRequest(page_size=size, page_token=token)
                page = service.list(request)
                found += map(self.answer, page.operations)
                token = page.next_page_token
                if not token:
                    return found

        self.all(call, wanted)

    @rule(name=operations)
    def cancel(self, name):
        wanted = self.model.cancel(name, self.clock())
        self.all(lambda service, _: service.cancel(name), wanted)

    @rule(name=operations)
    def delete(self, name):
        wanted = self.model.delete(name, self.clock())
        self.all(lambda service, _: service.delete(name), wanted)

    @rule(name=operations, percent=st.integers(0, 100))
    def report(self, name, percent):
        wanted = self.model.report(name, percent)
        metadata = WorkMetadata(percent)
        self.all(lambda service, _: service.reporter(name).report(metadata), wanted)

    @rule(name=operations)
    def complete(self, name):
        wanted = self.model.end(name, 0, self.clock())
        response = WorkResponse("done")
        self.all(lambda service, _: service.reporter(name).complete(response), wanted)

    @rule(name=operations)
    def finish(self, name):
        wanted = self.model.end(name, 0, self.clock())
        self.all(lambda service, _: service.reporter(name).finish(), wanted)

    @rule(name=operations, code=st.sampled_from([Code.CANCELLED, Code.ABORTED, Code.INTERNAL]))
    def fail(self, name, code):
        wanted = self.model.end(name, code, self.clock())
        error = Status(code, "failed")
        self.all(lambda service, _: service.reporter(name).fail(error), wanted)

    @rule(name=operations)
    def acknowledge(self, name):
        wanted = self.model.end(name, Code.CANCELLED, self.clock(), acknowledge=True)
        self.all(lambda service, _: service.reporter(name).acknowledge_cancel(), wanted)

    @rule(hours=st.sampled_from([0.001, 1, 30]))
    def claim(self, hours):
        """What is due, each once; of records that expired long ago it may be none."""
        now = self.clock()
        until = now + timedelta(hours=hours)
        sure, owing = self.model.owing(now, DEBT_LIFE), self.model.owing(now, timedelta(days=99))
        first, *others = [service.store.claim_due(until, 99) for service in self.services]
        self.claimed = [{record.name: record for record in found} for found in (first, *others)]
        names = {record.name for record in first}
        assert sure <= names <= owing
        assert all({record.name for record in found} == names for found in others)
        for name in owing:
            self.model.known[name].due = until

    @rule(hours=st.sampled_from([None, 0.5, 26]))
    def settle(self, hours):
        """What was claimed last, unless it is claimed again, deleted or expired."""
        until = None if hours is None else self.clock() + timedelta(hours=hours)
        for name in list(self.claimed[0]):
            found = [
                settled(service.store, claimed[name], until)
                for service, claimed in zip(self.services, self.claimed, strict=True)
            ]
            assert found == found[:1] * len(found)
            if found[0]:
                self.model.known[name].due = until

    @invariant()
    def the_next_debts_are_equal(self):
        """They are due at the same moment everywhere."""
        found = [service.store.next_due() for service in self.services]
        assert found == found[:1] * len(found)

    @rule(hours=st.sampled_from([0.0001, 0.5, 1, 2, 22, 24]))
    def advance(self, hours):
        self.clock.advance(hours=hours)

    @rule()
    def maintenance(self):
        for service in self.services:
            service.run_maintenance()

    @invariant()
    def the_records_are_equal(self):
        """Record by record, version and all; only what has expired may still be there or not."""
        for number in range(1, self.count + 1):
            name = f"operations/{number:03d}"
            first, *others = [record(service, name) for service in self.services]
            assert others == [first] * len(others)


def settled(store, claimed, until):
    """Whether a claim was still there to be settled."""
    try:
        store.update(claimed.name, settle_notifications(claimed, "again", until))
    except LroError:
        return False
    return True


def record(service, name):
    """Every column of the record of this name, or None."""
    try:
        return to_row(service.store.get(name))
    except LroError:
        return None


TestTraces = Traces.TestCase
TestTraces.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)


def test_traces_on_postgres():
    """The same with PostgreSQL as a third store; the long form is that of ``tests.full.across``."""
    run_traces(6)


def run_traces(examples: int, **options: Any) -> None:
    """Run so many traces on all stores; ``options`` are more settings of Hypothesis."""
    with contextlib.closing(Emptied(shared_server())) as emptied:
        run_state_machine_as_test(
            lambda: Traces(emptied),
            settings=settings(
                max_examples=examples, stateful_step_count=40, deadline=None, **options
            ),
        )

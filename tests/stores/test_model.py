"""Any trace of calls on a service gives the same on every store."""

from __future__ import annotations

import contextlib
import tempfile
from datetime import timedelta
from typing import Any
from unittest import mock

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
ENDPOINT = Endpoint(url="https://hooks.acme.test/done")
IDS = [f"00000000-0000-4000-8000-00000000000{number}" for number in (1, 2)]


class Traces(RuleBasedStateMachine):
    """Every rule calls all services, and compares what they answer and what they then hold.

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
        """What callers see of an operation."""
        metadata = self.services[0].types.unpack(operation.metadata, WorkMetadata)
        code = operation.error.code if operation.error else 0
        return operation.name, operation.state, metadata.percent, code

    def all(self, call):
        """What all services answer alike."""
        found = []
        for service, method in zip(self.services, self.methods, strict=True):
            try:
                found.append(call(service, method))
            except LroError as exc:
                found.append(exc.code.name)
        assert found == found[:1] * len(found)
        return found[0]

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
            return name if self.all(call)[0] == name else multiple()

    @rule(name=operations)
    def read(self, name):
        """One Get, one Wait, and all at once: what a Get does not find is missing there."""
        self.all(lambda service, _: self.answer(service.get(name)))
        self.all(lambda service, _: self.answer(service.wait(name, timedelta())))
        names = [f"operations/{number:03d}" for number in range(self.count + 2)]

        def call(service, _):
            batch = service.batch_get(names)
            return [self.answer(one) for one in batch.operations], [*batch.missing]

        self.all(call)

    @rule(size=st.integers(0, 3))
    def list(self, size):
        def call(service, _):
            found, token = [], ""
            while True:
                request = ListOperationsRequest(page_size=size, page_token=token)
                page = service.list(request)
                found += map(self.answer, page.operations)
                token = page.next_page_token
                if not token:
                    return found

        self.all(call)

    @rule(
        name=operations,
        what=st.sampled_from(["cancel", "delete", "complete", "finish", "acknowledge_cancel"]),
    )
    def end(self, name, what):
        given = [WorkResponse("done")] if what == "complete" else []

        def call(service, _):
            if what in ("cancel", "delete"):
                return getattr(service, what)(name)
            return getattr(service.reporter(name), what)(*given)

        self.all(call)

    @rule(name=operations, percent=st.integers(0, 100))
    def report(self, name, percent):
        metadata = WorkMetadata(percent)
        self.all(lambda service, _: service.reporter(name).report(metadata))

    @rule(name=operations, code=st.sampled_from([Code.CANCELLED, Code.ABORTED, Code.INTERNAL]))
    def fail(self, name, code):
        error = Status(code, "failed")
        self.all(lambda service, _: service.reporter(name).fail(error))

    @rule(hours=st.sampled_from([0.001, 1, 30]))
    def claim(self, hours):
        """What is due, each once."""
        until = self.clock() + timedelta(hours=hours)
        self.claimed = [
            {record.name: record for record in service.store.claim_due(until, 99)}
            for service in self.services
        ]
        assert all(found.keys() == self.claimed[0].keys() for found in self.claimed)

    @rule(hours=st.sampled_from([None, 0.5, 26]))
    def settle(self, hours):
        """What was claimed last, unless it is claimed again, deleted or expired."""
        until = None if hours is None else self.clock() + timedelta(hours=hours)
        for name in self.claimed[0]:
            found = [
                settled(service.store, claimed[name], until)
                for service, claimed in zip(self.services, self.claimed, strict=True)
            ]
            assert found == found[:1] * len(found)

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

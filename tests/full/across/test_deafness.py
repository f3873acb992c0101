"""Where no subscription can be opened, what others change is found by looking."""

from __future__ import annotations

import logging
import threading

import pytest

from lro import Service
from lro._engine.change_listener import ChangeListener
from lro._engine.runtime import RecordUpdater
from lro._model.operation import request_cancel
from lro.errors import Unavailable
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.engine.engine_parts import FakeWorkers
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse


class Earless(SQLiteStore):
    """A store that can be read and written, but not listened to: its connections are all in use."""

    def listen(self):
        raise Unavailable("too many clients")


def declared(store):
    service = Service(store, InlineExecutor(), maintenance=False)
    method = service.declare(
        "acme.v1.Works.Work", request=WorkRequest, response=WorkResponse, metadata=WorkMetadata
    )
    return service, method


def test_waiters_answer_without_a_subscription(tmp_path, caplog):
    """Before their time is over, by a look after each attempt to open one."""
    store = Earless(tmp_path / "operations.db")
    (here, method), (there, _) = declared(store), declared(SQLiteStore(tmp_path / "operations.db"))
    name = method.start(WorkRequest()).name
    found = []
    waiter = threading.Thread(target=lambda: found.append(here.wait(name, PATIENCE)))
    with caplog.at_level(logging.CRITICAL, "lro"):
        waiter.start()
        there.reporter(name).complete(WorkResponse())
        waiter.join()
    assert found[0].done
    here.close(0)
    there.close(0)


class Refusing(MemoryStore):
    """A shared store that refuses to be listened to."""

    shared = True

    def listen(self):
        raise Unavailable("too many clients")


@pytest.fixture
def listener():
    """A listener on a store that refuses; it holds what the test says, and notes its pauses."""

    class Noted(ChangeListener):
        pauses = 0

        def __init__(self):
            self.work = FakeWorkers()
            super().__init__(RecordUpdater(Refusing()), self.work)
            self._stopping.wait = self.pause

        def pause(self, seconds):
            self.pauses += 1

    made = Noted()
    yield made
    made.stop()


def test_it_is_not_tried_for_ever(listener):
    """No caller waits any more: the thread sleeps, until one does."""
    asleep = threading.Event()
    clear = listener._wake.clear
    listener._wake.clear = lambda: (clear(), asleep.set())
    for number in (1, 2):
        listener.ensure_running()
        assert asleep.wait(PATIENCE)
        asleep.clear()
        assert listener.pauses == number


def test_work_in_hand_learns_that_it_is_to_stop(listener):
    """By the same look."""
    store = listener._store
    service, method = declared(store)
    name = method.start(WorkRequest()).name
    store.update(name, request_cancel(store.now()))
    listener.work.names = {name}
    cancelled = threading.Event()
    listener.work.cancel_held = lambda name: (listener.work.names.clear(), cancelled.set())
    listener.ensure_running()
    assert cancelled.wait(PATIENCE)
    service.close(0)

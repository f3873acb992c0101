"""Threads in which the blocking client makes calls that have a deadline."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Iterator

import httpx
import pytest

from lro_client import Client
from lro_client._flow import drivers
from lro_client._flow.drivers import CallThreads, _CallThread
from tests.client.messages import NAME, reply, running
from tests.patching import patch_threads


@pytest.fixture
def call_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[CallThreads]:
    """A pool of call threads for one test; the threads end with the test."""
    monkeypatch.setattr(drivers, "MAX_IDLE_SECONDS", 60.0)
    before, made = {*threading.enumerate()}, CallThreads()
    first_idle = made._idle
    yield made
    monkeypatch.setattr(drivers, "MAX_IDLE_THREADS", 0)  # each thread ends after its next task
    for idle in (first_idle, made._idle):
        while idle:
            idle.pop().tasks.put((contextvars.copy_context(), lambda: None, lambda _: None))
    for one in {*threading.enumerate()} - before:
        one.join(120)
        assert not one.is_alive()


def test_idle_thread_is_reused(call_threads: CallThreads) -> None:
    first, second = (call_threads.call(threading.current_thread, 120, set()) for _ in range(2))
    assert first is second


def test_number_of_idle_threads_is_bounded(
    call_threads: CallThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads end after their call if enough threads are idle already."""
    monkeypatch.setattr(drivers, "MAX_IDLE_THREADS", 2)
    over = threading.Event()
    reports: queue.SimpleQueue[object] = queue.SimpleQueue()
    before = {*threading.enumerate()}
    for _ in range(5):
        call_threads.start(over.wait, reports.put)
    lent = {*threading.enumerate()} - before
    over.set()
    assert [reports.get(timeout=120) for _ in range(5)] == [(True, None)] * 5
    assert len(lent) == 5
    assert len(call_threads._idle) <= 2


def test_task_given_to_an_ending_thread_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that receives a task while it is about to end runs the task first."""
    monkeypatch.setattr(drivers, "MAX_IDLE_SECONDS", 0.001)
    leaving, reported = threading.Event(), threading.Event()

    class Taken(list[_CallThread]):
        def remove(self, thread: _CallThread) -> None:
            leaving.set()
            raise ValueError  # list.remove raises this for a missing item

    thread = _CallThread(Taken())
    assert leaving.wait(120)
    thread._idle = []
    thread.tasks.put((contextvars.copy_context(), lambda: 2, lambda _: reported.set()))
    assert reported.wait(120)


def test_a_forked_process_has_no_idle_threads(
    call_threads: CallThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = call_threads.call(threading.current_thread, 120, set())
    monkeypatch.setattr(drivers.os, "getpid", lambda: -1)
    assert call_threads.call(threading.current_thread, 120, set()) is not first


def test_call_runs_in_the_callers_thread_if_no_thread_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If no thread can be started, as when Python 3.12 exits, calls run in the caller's thread."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.path, threading.current_thread()))
        return reply(running())

    http = httpx.Client(base_url="http://s", transport=httpx.MockTransport(answer))
    with http, Client(http=http) as client:
        drivers.CALL_THREADS.forget()  # drop the idle threads of other tests
        patch_threads(monkeypatch, threading.Thread, "start", refuse)
        handle = client.operation(NAME)
        handle.cancel()
        client.group([handle]).cancel()
        monkeypatch.undo()
    assert asked == [(f"/v1/{NAME}:cancel", threading.current_thread())] * 2

"""Threads that are lent for calls which must be over by a time."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Iterator

import pytest

from lro_client._flow import threads
from lro_client._flow.threads import CallThreads, Late, _CallThread


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Iterator[CallThreads]:
    """Those of one test, whose threads do not linger for long."""
    monkeypatch.setattr(threads, "MAX_IDLE_SECONDS", 0.5)
    before = {*threading.enumerate()}
    yield CallThreads()
    for one in {*threading.enumerate()} - before:
        one.join(10)
        assert not one.is_alive()


def test_what_a_call_gives_or_raises(hands: CallThreads) -> None:
    """It comes back to the caller, from a daemon."""
    assert hands.call(lambda: threading.current_thread().daemon, 10, set())
    with pytest.raises(ZeroDivisionError):
        hands.call(lambda: 1 // 0, 10, set())


def test_an_idle_thread_is_taken_again(hands: CallThreads) -> None:
    """One thread does one call after the other."""
    first, second = (hands.call(threading.current_thread, 10, set()) for _ in range(2))
    assert first is second


def test_few_threads_are_kept(hands: CallThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those above their number end with their call, however many were lent at once."""
    monkeypatch.setattr(threads, "MAX_IDLE_THREADS", 2)
    over = threading.Event()
    told: queue.SimpleQueue[object] = queue.SimpleQueue()
    before = {*threading.enumerate()}
    for _ in range(5):
        hands.start(over.wait, told.put)
    lent = {*threading.enumerate()} - before
    over.set()
    assert [told.get(timeout=10) for _ in range(5)] == [(True, None)] * 5
    assert len(lent) == 5
    assert len(hands._idle) <= 2


def test_late(hands: CallThreads) -> None:
    """The caller goes on; what the call gives in the end is dropped."""
    over = threading.Event()
    with pytest.raises(Late):
        hands.call(over.wait, 0.01, set())
    over.set()
    assert hands.call(lambda: 1, 10, set()) == 1


def test_a_thread_that_is_taken_as_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its order is on the way: it stays for that."""
    monkeypatch.setattr(threads, "MAX_IDLE_SECONDS", 0.001)
    leaving, told = threading.Event(), threading.Event()

    class Taken(list[_CallThread]):
        def remove(self, hand: _CallThread) -> None:
            leaving.set()
            raise ValueError  # as a list does that does not have it

    hand = _CallThread(Taken())
    assert leaving.wait(10)
    hand._idle = []
    hand.orders.put((contextvars.copy_context(), lambda: 2, lambda _: told.set()))
    assert told.wait(10)


def test_a_forked_process_has_no_idle_threads(
    hands: CallThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stayed with the parent."""
    first = hands.call(threading.current_thread, 10, set())
    monkeypatch.setattr(threads.os, "getpid", lambda: -1)
    assert hands.call(threading.current_thread, 10, set()) is not first


def test_another_may_answer(hands: CallThreads) -> None:
    """Whoever is asking is told, instead of what the call gives later."""
    asking: set[threads.AnswerQueue] = set()
    over, begun = threading.Event(), threading.Event()

    def call() -> None:
        [answer] = asking
        answer.put((None, ZeroDivisionError()))
        begun.set()
        over.wait(10)

    with pytest.raises(ZeroDivisionError):
        hands.call(call, 10, asking)
    assert begun.is_set()
    assert asking == set()
    over.set()

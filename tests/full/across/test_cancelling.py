"""Cancelled means stopped, and of cancellation and completion one wins (spec §2.6, §2.8)."""

from __future__ import annotations

import contextlib

import pytest

from tests.full.across.parties import Apart, Inside
from tests.full.across.races import report_races, work_races
from tests.full.across.service_host import REPORTS
from tests.places import Place
from tests.waiting import PATIENCE

RACES = 80
REPORTED = 40
METHODS = {"threads": "work", "asyncio": "awork", "processes": "work"}
"""The method whose colour is that of the executor."""


@pytest.fixture(scope="module", params=["asyncio", "processes"])
def other_worker(request, place):
    """A process at the same place that works with another executor, and its method."""
    with contextlib.closing(Apart(place, request.param)) as party:
        yield party, METHODS[request.param]


@pytest.fixture
def alone():
    """A service of this process, in memory."""
    with contextlib.closing(Inside(Place("memory"))) as party:
        yield party


def stopping_in_view(parties, method, traces, latch):
    """The work has seen that it is to stop and has not stopped: no caller sees it as done."""
    latches = {name: latch(name) for name in ("begun", "seen", "go")}
    plan = {name: str(one.path) for name, one in latches.items()}
    plan |= {"steps": 1, "step": PATIENCE, "stopping": 0, "traces": str(traces.path)}
    name = parties[0].do("start", method=method, **plan)
    latches["begun"].wait()
    waiting = [party.ask("wait", name=name) for party in parties]
    parties[1].do("cancel", name=name)
    latches["seen"].wait()
    for party in parties:
        party.do("cancel", name=name)  # once more changes nothing
        assert not party.do("get", name=name)["done"]
        assert not party.do("wait", name=name, seconds=0)["done"]
        assert party.do("lease", name=name)[1:] == [True, 1]
    assert not any(one.done() for one in waiting)
    latches["go"].open()
    assert [one.result(PATIENCE)["state"] for one in waiting] == ["CANCELLED"] * len(parties)


def test_cancelled_is_not_seen_before_the_work_has_stopped(three, traces, latch):
    """From no process, however often it is asked."""
    stopping_in_view(three, "work", traces, latch)


def test_work_of_another_executor_is_not_done_before_it_stops(three, other_worker, traces, latch):
    """Work of an event loop, and of a process of its own."""
    worker, method = other_worker
    stopping_in_view([worker, *three[:2]], method, traces, latch)


def test_work_is_cancelled_as_it_ends(three, traces):
    """At moments that chance chooses: every state is the truth about the work."""
    found = work_races(three, "work", traces, range(RACES))
    assert found.total() == RACES
    assert found["SUCCEEDED"]
    assert found["CANCELLED"]


def test_other_work_is_cancelled_as_it_ends(three, other_worker, traces):
    """The same where it is a coroutine, or a process of its own."""
    worker, method = other_worker
    found = work_races([worker, *three[:2]], method, traces, range(RACES))
    assert found.total() == RACES
    assert found["CANCELLED"]


@pytest.mark.parametrize("method", ["work", "awork"])
def test_work_is_cancelled_as_it_ends_in_one_process(alone, traces, method):
    """The same with threads, in memory."""
    found = work_races([alone, alone], method, traces, range(RACES))
    assert found.total() == RACES
    assert found["CANCELLED"]


def test_one_report_is_applied(three):
    """Nine come at once from three processes; eight get the answer that they came too late."""
    found = report_races(three, REPORTED)
    assert found.total() == REPORTED
    assert set(found) <= set(REPORTS)


def test_one_report_is_applied_in_one_process(alone):
    """The same with threads, in memory."""
    assert report_races([alone, alone], REPORTED).total() == REPORTED

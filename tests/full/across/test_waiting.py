"""Started in one process, ended in another, awaited in a third: every waiter learns the truth."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.waiting import PATIENCE

LOOK_AGAIN = 0.25
"""Seconds between looks where no announcement arrives; the library's own are a few more."""

WAITERS = {"threads": 3, "coroutines": 5}


def act(party, name, how):
    """End an operation so."""
    if how == "delete":
        party.do("delete", name=name)
    else:
        assert party.do("end", name=name, how=how, text="the truth")


@pytest.mark.parametrize(
    ("how", "state", "text"),
    [
        ("complete", "SUCCEEDED", "the truth"),
        ("fail", "FAILED", "the truth"),
        ("acknowledge", "CANCELLED", "the operation was cancelled"),
        ("delete", "NOT_FOUND", None),
    ],
)
def test_every_waiter_learns_how_it_ended(three, how, state, text):
    """In all three processes, threads and coroutines."""
    here, there, elsewhere = three
    name = here.do("start")
    for party in three:
        party.do("park", name=name, **WAITERS)
    act(there, name, how)
    for party in (elsewhere, here, there):
        answers = party.do("answers")
        assert [(one["state"], one.get("text")) for one in answers] == [(state, text)] * 8


def test_a_cancellation_reaches_the_work_from_a_third_process(three, traces, latch):
    """One process works, the second asks to stop, the third sees it stopped."""
    here, there, elsewhere = three
    begun = latch("begun")
    plan = {"steps": 1, "step": PATIENCE, "stopping": 0, "traces": str(traces.path)}
    name = here.do("start", method="work", **plan, begun=str(begun.path))
    begun.wait()
    elsewhere.do("park", name=name, **WAITERS)
    there.do("cancel", name=name)
    assert {one["state"] for one in elsewhere.do("answers")} == {"CANCELLED"}


def test_a_held_request_is_answered_by_another_process(three):
    """Over HTTP: the third process is asked to wait, and answers when the second has ended it."""
    pytest.importorskip("uvicorn")
    here, there, elsewhere = three
    name = here.do("start")
    with httpx.Client(base_url=elsewhere.do("serve"), timeout=PATIENCE) as client:
        assert not client.get(f"/v1/{name}").json().get("done")
        with ThreadPoolExecutor(1) as threads:
            held = threads.submit(client.post, f"/v1/{name}:wait", json={"timeout": "60s"})
            elsewhere.do("listeners", count=1)
            act(there, name, "complete")
            reply = held.result(PATIENCE).json()
        assert (reply["done"], reply["response"]["text"]) == (True, "the truth")


@pytest.mark.parametrize("how", ["complete", "delete"])
def test_waiters_answer_where_every_announcement_is_lost(three, how):
    """With the first look after the end, and between looks lies no more than the period.

    No process sends a notification, and none would receive it.
    """
    here, there, elsewhere = three
    for party in three:
        party.do("deafen", deaf=True, look_again=LOOK_AGAIN)
    try:
        name = here.do("start")
        for party in (here, elsewhere):
            party.do("park", name=name, **WAITERS)
            party.do("unhearing")
        before = {party: len(party.do("noted")["polls"]) for party in (here, elsewhere)}
        act(there, name, how)
        for party in (here, elsewhere):
            answers = party.do("answers")
            assert {one["state"] for one in answers} == {
                "SUCCEEDED" if how == "complete" else "NOT_FOUND"
            }
            noted = party.do("noted")
            assert max(noted["pauses"]) <= LOOK_AGAIN
            looks = [over for _, _, over in noted["polls"][before[party] :]]
            assert set(looks[looks.index(1) :]) == {1}
    finally:
        for party in three:
            party.do("deafen", deaf=False)

"""Cancellation against completion: the first one wins, and CANCELLED means stopped.

Two kinds of race. *Work* runs as a function in one process, is cancelled at a moment that chance
chooses from another, and is watched from a third. *Reports* of an operation whose work is done
outside come from all of them at once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.full.across.parties import Party
from tests.full.across.service_host import REPORTS, View
from tests.full.across.works import NOT_STARTED, RETURNED, RUNNING, STOPPED, Traces

AT_ONCE = 8
"""How many races are run at once: more than there are threads to work."""

STATES = {RETURNED: "SUCCEEDED", STOPPED: "CANCELLED", NOT_STARTED: "CANCELLED"}
"""What an operation ends as, by what its function did last."""


def work_races(
    parties: Sequence[Party], method: str, traces: Traces, numbers: range, seed: int = 0
) -> Counter[str]:
    """Cancel the work of the first party from the second one, while the last one watches.

    What became of it: how often each state, how often before the work had begun.
    """

    def race(number: int) -> str:
        return one_race(parties, method, traces, number, random.Random(f"{seed} {number}"))

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return Counter(threads.map(race, numbers))


def one_race(
    parties: Sequence[Party], method: str, traces: Traces, number: int, draw: random.Random
) -> str:
    """Run one; what came of it.

    The work takes up to 3 ms, or longer than any caller waits; the request comes within 4 ms, or
    within 40, and stopping takes up to 20 ms.
    """
    steps = draw.randrange(5)
    plan = {
        "steps": steps,
        "step": 60.0 if steps == 4 else draw.random() / 1000,
        "stopping": draw.random() * 20 / 1000,
        "traces": str(traces.path),
    }
    delay = draw.random() * draw.choice([4, 40]) / 1000
    worker, canceller, observer = parties[0], parties[1], parties[-1]
    name = worker.do("start", method=method, number=number, **plan)
    watched = {"name": name, "number": number, "traces": str(traces.path)}
    futures = [
        canceller.ask("watch", **watched, delay=delay, cancel=True),
        observer.ask("watch", **watched, delay=0, cancel=False),
        worker.ask("watch", **watched, delay=0, cancel=False),
    ]
    seen = [future.result(120) for future in futures]
    check_race(name, number, seen, traces)
    check_final(parties, name, seen[0])
    began = "" if traces.begun(number) else " before it began"
    return f"{seen[0]['state']}{began}"


def check_race(name: str, number: int, seen: Sequence[View], traces: Traces) -> None:
    """All saw the same end, and no caller saw it while the function still ran."""
    answers = {(one["state"], one["text"]) for one in seen}
    assert len(answers) == 1, f"{name}: {answers}"
    running = [one for one in seen if one["trace"] == RUNNING]
    assert not running, f"{name}: seen {running} while its function ran"
    ((state, text),) = answers
    assert state == STATES[traces[number]], f"{name} is {state}, its work {traces[number]}"
    assert state == "CANCELLED" or text == str(number), f"{name}: {text!r}"
    assert traces.begun(number) <= 1, f"{name}: its work was done {traces.begun(number)} times"


def check_final(parties: Sequence[Party], name: str, seen: View) -> None:
    """The record stays as it was seen, and has no owner."""
    for party in parties:
        now = party.do("get", name=name)
        assert (now["state"], now["text"]) == (seen["state"], seen["text"]), f"{name}: {now}"
    owner, leased, attempt = parties[-1].do("lease", name=name)
    assert (owner, leased) == ("", False), f"{name} is over and held"
    assert attempt <= 1


def report_races(parties: Sequence[Party], count: int, seed: int = 0) -> Counter[str]:
    """Every party completes, fails and acknowledges the cancellation of the same operations.

    How often each kind of report was first.
    """
    draw = random.Random(seed)
    asked_before = [draw.random() < 0.5 for _ in range(count)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return Counter(threads.map(lambda asked: one_report(parties, asked), asked_before))


def one_report(parties: Sequence[Party], asked_before: bool) -> str:
    """Run one such race; which report was first.

    It is the only one that was applied, and what is stored is what it said. Unless the operation
    was ``asked_before`` to stop, the first to acknowledge that asks first.
    """
    name = parties[0].do("start")
    if asked_before:
        parties[0].do("cancel", name=name)
    futures = [
        party.ask("end_together", name=name, who=str(who)) for who, party in enumerate(parties)
    ]
    answers = [future.result(120) for future in futures]
    winners = [(who, how) for who, one in enumerate(answers) for how in REPORTS if one[how]]
    assert len(winners) == 1, f"{name}: {winners} were reported as first"
    ((who, how),) = winners
    seen = parties[-1].do("get", name=name)
    found = seen["state"], seen["note"] if how == "acknowledge" else seen["text"]
    states = {"complete": "SUCCEEDED", "fail": "FAILED", "acknowledge": "CANCELLED"}
    assert found == (states[how], f"{how} by {who}"), f"{seen} although {winners}"
    check_final(parties, name, seen)
    return how

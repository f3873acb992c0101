"""Races of starts, and of cancellation against completion: all processes agree on the winner.

Identical starts from several processes do the work once. Cancellation and completion race: the
first one wins, and CANCELLED means that the work has stopped. In ``work_races`` one process does
the work, a second one cancels it at a random moment, and a third one watches the operation. In
``report_races`` all processes report the result of outside work at once. In ``delays`` a wait in
one process soon returns how another process has ended the operation.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.full.across.parties import Party
from tests.full.across.service_host import REPORTS, View
from tests.full.across.works import NOT_STARTED, RETURNED, RUNNING, STOPPED, Traces

AT_ONCE = 8
"""How many races run at once: more than there are threads for work."""

STATES = {RETURNED: "SUCCEEDED", STOPPED: "CANCELLED", NOT_STARTED: "CANCELLED"}
"""The state of an operation, by how its function ended."""


def work_races(
    parties: Sequence[Party], method: str, traces: Traces, numbers: range, seed: int = 0
) -> Counter[str]:
    """Let the second party cancel the first party's work, while the last party watches.

    Return how often each state was reached, before the work began and after.
    """

    def race(number: int) -> str:
        return one_race(parties, method, traces, number, random.Random(f"{seed} {number}"))

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return Counter(threads.map(race, numbers))


def one_race(
    parties: Sequence[Party], method: str, traces: Traces, number: int, draw: random.Random
) -> str:
    """Run one race; return its outcome.

    The work takes up to 3 ms, or longer than any caller waits. The cancellation comes within 4 ms
    or 40 ms, and stopping the work takes up to 20 ms.
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
    """Check that all parties saw the same end, and that the function had stopped by then."""
    answers = {(one["state"], one["text"]) for one in seen}
    assert len(answers) == 1, f"{name}: {answers}"
    running = [one for one in seen if one["trace"] == RUNNING]
    assert not running, f"{name}: seen {running} while its function ran"
    ((state, text),) = answers
    assert state == STATES[traces[number]], f"{name} is {state}, its work {traces[number]}"
    assert state == "CANCELLED" or text == str(number), f"{name}: {text!r}"
    assert traces.begun(number) <= 1, f"{name}: its work was done {traces.begun(number)} times"


def check_final(parties: Sequence[Party], name: str, seen: View) -> None:
    """Check that the operation is still in the state that was seen, and that it has no owner."""
    for party in parties:
        now = party.do("get", name=name)
        assert (now["state"], now["text"]) == (seen["state"], seen["text"]), f"{name}: {now}"
    owner, leased, attempt = parties[-1].do("lease", name=name)
    assert (owner, leased) == ("", False), f"{name} is over and held"
    assert attempt <= 1


def report_races(parties: Sequence[Party], count: int, seed: int = 0) -> Counter[str]:
    """Let every party complete, fail and acknowledge the cancellation of the same operations.

    Return how often each kind of report was first.
    """
    draw = random.Random(seed)
    asked_before = [draw.random() < 0.5 for _ in range(count)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return Counter(threads.map(lambda asked: one_report(parties, asked), asked_before))


def one_report(parties: Sequence[Party], asked_before: bool) -> str:
    """Run one race of reports; return the kind of report that was first.

    Check that only that report was applied, and that the record has the report's values. If
    ``asked_before``, the operation is cancelled before the race. Otherwise each party cancels the
    operation just before the party acknowledges the cancellation.
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


CALLERS = 100
"""The number of identical concurrent starts in one round, from all processes together."""

CONFLICT = "INVALID_ARGUMENT REQUEST_ID_CONFLICT"


def bodies(count: int, others: int, draw: random.Random) -> list[str]:
    """Return one process's request texts in random order; ``others`` texts are different."""
    texts = ["other"] * others + ["same"] * (count - others)
    draw.shuffle(texts)
    return texts


def one_round(
    parties: Sequence[Party], number: int, traces: Traces, others: int, draw: random.Random
) -> str:
    """Make all starts of a round at once, with one request id; return the operation's name.

    The first request wins: starts with its text get the operation, and starts with a different text
    get a conflict. In each process, ``others`` starts have a different text.
    """
    request_id = str(uuid.UUID(int=draw.getrandbits(128), version=4))
    shares = [len(range(one, CALLERS, len(parties))) for one in range(len(parties))]
    asked = [bodies(share, others, draw) for share in shares]
    futures = [
        party.ask(
            "starts",
            method="work",
            request_id=request_id.upper() if draw.random() < 0.5 else request_id,
            texts=texts,
            number=number,
            traces=str(traces.path),
            steps=0,
            step=0,
            stopping=0,
        )
        for party, texts in zip(parties, asked, strict=True)
    ]
    answers = [
        (text, answer)
        for texts, future in zip(asked, futures, strict=True)
        for text, answer in zip(texts, future.result(120), strict=True)
    ]
    winners: set[tuple[str, str]] = {
        (text, answer) for text, answer in answers if answer != CONFLICT
    }
    assert len(winners) == 1, f"round {number}: {winners}"
    ((first, name),) = winners
    wrong = [text for text, answer in answers if (text == first) != (answer == name)]
    assert not wrong, f"round {number}: {wrong} although {first!r} was the first"
    return name


def identical_starts(
    parties: Sequence[Party], rounds: int, traces: Traces, seed: int = 0
) -> Counter[str]:
    """Run rounds of concurrent starts; in every second round, some texts differ.

    Return the numbers of starts, of operations, and of calls of the work.
    """
    draw = random.Random(seed)
    before = parties[0].do("count")
    names = [one_round(parties, number, traces, number % 2 * 3, draw) for number in range(rounds)]
    for name in names:
        seen = parties[-1].do("wait", name=name)
        assert seen["state"] == "SUCCEEDED", seen
    done = [traces.begun(number) for number in range(rounds)]
    assert len(set(names)) == rounds
    assert parties[-1].do("count") - before == rounds
    assert done == [1] * rounds, "work was done more than once, or not at all"
    return Counter(starts=CALLERS * rounds, operations=rounds, runs=sum(done))


ENDS = {
    "complete": ("SUCCEEDED", "the truth"),
    "fail": ("FAILED", "the truth"),
    "acknowledge": ("CANCELLED", "the operation was cancelled"),
    "delete": ("NOT_FOUND", None),
}
"""The state and text that a wait returns, by how the operation was ended."""


def delays(parties: Sequence[Party], rounds: int, deaf: bool, look_again: float) -> list[float]:
    """Return the seconds from the reply to the second party's ``end`` to each waiter's result.

    Each round ends an operation in each way, while a thread and a coroutine of the third party wait
    for it. If ``deaf``, all notifications are lost. ``look_again`` is the seconds between two
    polls.
    """
    starter, ender, waiter = parties
    for party in parties:
        party.do("deafen", deaf=deaf, look_again=look_again)
    found = []
    for how, learnt in [*ENDS.items()] * rounds:
        name = starter.do("start")
        waiter.do("park", name=name, threads=1, coroutines=1)
        if deaf:
            waiter.do("unhearing")
        ended_at = ender.do("end_at", name=name, how=how)
        answers = waiter.do("answers")
        assert [(one["state"], one.get("text")) for one in answers] == [learnt] * 2
        found += [one["at"] - ended_at for one in answers]
    for party in parties:
        party.do("deafen", deaf=False)
    return found

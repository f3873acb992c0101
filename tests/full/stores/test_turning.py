"""Limits, keys, rates, priorities and retries hold across processes, even if some are killed."""

from __future__ import annotations

import socket
import time
from collections import Counter
from contextlib import closing

import lro
from tests.full.stores.turning import (
    AT_ONCE,
    RATE,
    Turning,
    calls_in,
    crew,
    most_at_once,
    most_within,
)
from tests.waiting import until


def limits_are_kept(place, folder, processes, kills, each):
    """Run three methods while processes are killed; return peak counts and the repeated calls."""
    events = folder / "events"
    with closing(place.open()) as store:
        turning = Turning(store, 0, events)
        names = turning.start("Three", range(each), 0.2)
        apart = turning.start("Apart", [number % 20 for number in range(each)], 0.2)
        rated = turning.start("Rated", range(each))
        with crew(place, processes, 2, events) as workers:
            for _ in range(kills):
                time.sleep(1)
                workers.replace()
            everything = [*names, *apart, *rated]
            until(lambda: all(turning.service.get(name).done for name in everything))
            assert {turning.service.get(name).state for name in everything} == {"SUCCEEDED"}
        calls = calls_in(events)
        three = [call for call in calls if call.name in {*names}]
        keys = [
            [one for one in calls if one.name in {*apart} and one.key == str(key)]
            for key in range(20)
        ]
        again = len(calls) - len({call.name for call in calls})
        begun = [store.get(name) for name in rated]
        starts = [one.start_time for one in begun if one.lost_attempts == 0]
        return (
            most_at_once(three, workers.killed),
            max(most_at_once(key, workers.killed) for key in keys),
            most_within(starts, RATE[1]),
            again,
        )


def test_limits_hold_while_processes_are_killed(place, tmp_path):
    """The limits of a method, of a key and of a rate hold while processes are killed."""
    three, apart, rated, again = limits_are_kept(place, tmp_path, 4, 2, 40)
    assert (three, apart, again > 0) == (AT_ONCE, 1, True)
    assert rated <= RATE[0]


def between(place, folder, many):
    """Return how many jobs of a busy key begin before ten jobs of another key have begun."""
    events = folder / "events"
    with closing(place.open()) as store:
        turning = Turning(store, 0, events)
        turning.start("Fair", ["warm"] * 4, 0.1)
        with crew(place, 2, 2, events):
            until(lambda: len(calls_in(events)) == 4)
            turning.start("Fair", ["many"] * many, 0.02)
            until(lambda: any(call.key == "many" for call in calls_in(events)))
            few = {*turning.start("Fair", ["few"] * 10, 0.02)}
            stored = time.monotonic()
            until(lambda: len({call.name for call in calls_in(events)} & few) == 10)
        calls = calls_in(events)
        last = max(call.began for call in calls if call.name in few)
        return sum(call.key == "many" and stored < call.began < last for call in calls)


def test_keys_with_few_and_many_jobs_take_turns(place, tmp_path):
    """A key with 10 jobs does not wait for 500 jobs of another key: both take turns."""
    assert between(place, tmp_path, 500) <= 20


def inversions(place, folder, each):
    """Return how far work began out of order: within a priority, and between priorities."""
    events = folder / "events"
    with closing(place.open()) as store:
        turning = Turning(store, 0, events)
        names = {}
        for number in range(each):
            for priority in (0, 5, -5):
                request = lro.Struct({"key": priority, "seconds": 0.02})
                name = turning.methods["Plain"].start(request, priority=priority).name
                names[name] = number
        with crew(place, 4, 2, events):
            until(lambda: all(turning.service.get(name).done for name in names))
        calls = calls_in(events)  # these are sorted by begin time
        order = [int(call.key) for call in calls]
        ahead = 0
        for priority in (0, 5, -5):
            left = [*range(each)]
            for call in calls:
                if int(call.key) == priority:
                    ahead = max(ahead, left.index(names[call.name]))
                    left.remove(names[call.name])
        early = max(sum(later > one for later in order[place:]) for place, one in enumerate(order))
        return ahead, early


def test_eight_concurrent_claimers_keep_the_order(place, tmp_path):
    """Work is overtaken only by work that the other seven workers claim at the same time."""
    ahead, early = inversions(place, tmp_path, 40)
    assert ahead < 8
    assert early < 8


def test_work_is_retried_until_an_outage_ends(place, tmp_path):
    """Work is retried during an outage until it succeeds; a killed process costs no attempt."""
    events = tmp_path / "events"
    with socket.socket() as dependency, closing(place.open()) as store:
        dependency.bind(("127.0.0.1", 0))  # the port is closed until ``listen``
        port = dependency.getsockname()[1]
        turning = Turning(store, 0, events, port)
        with crew(place, 2, 1, events, port) as workers:
            names = turning.start("Calls", range(20))
            until(lambda: all(len(store.get(name).failed_attempts) >= 2 for name in names))
            (slow,) = turning.start("Plain", ["plain"], 1.0)
            until(lambda: store.get(slow).owner)
            workers.replace()
            dependency.listen(64)
            until(lambda: all(turning.service.get(name).done for name in [slow, *names]))
        assert {turning.service.get(name).state for name in names} == {"SUCCEEDED"}
        counts = Counter(call.name for call in calls_in(events))
        for name in names:
            record = store.get(name)
            assert record.attempt == counts[name] == len(record.failed_attempts) + 1
            assert {one.error for one in record.failed_attempts} == {"ConnectionRefusedError"}

"""When records are looked for that are there after a commit which no database reports."""

from __future__ import annotations

import math

import pytest

from lro._engine.uncommitted import Uncommitted


class Seconds:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Seconds()


def test_looks_come_at_growing_intervals_for_a_minute(clock):
    uncommitted = Uncommitted(clock)
    assert (uncommitted.next_look, uncommitted.take_due()) == (math.inf, {})
    uncommitted.add("a")
    looks = []
    while uncommitted.next_look < math.inf:
        clock.now = uncommitted.next_look
        looks.append(clock.now)
        ((name, since),) = uncommitted.take_due().items()
        uncommitted.keep(name, since)
    pauses = [round(after - before, 6) for before, after in zip([0.0, *looks], looks, strict=False)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == pytest.approx((0.01, 0.5))
    assert 60 <= looks[-1] < 61
    # So that a commit is noticed within a quarter of the transaction's age.
    assert all(pause <= max(0.0101, end / 4) for pause, end in zip(pauses, looks, strict=True))


def test_only_what_is_due_is_taken(clock):
    uncommitted = Uncommitted(clock)
    uncommitted.keep("old", -40.0)
    uncommitted.add("new")
    clock.now = 0.01
    assert uncommitted.take_due() == {"new": 0.0}
    clock.now = 0.5
    assert uncommitted.take_due() == {"old": -40.0}


def test_many_names_are_taken_a_thousand_at_once_and_bounded(clock):
    uncommitted = Uncommitted(clock)
    for number in range(10_001):
        uncommitted.add(str(number))
    clock.now = 1.0
    taken = [len(uncommitted.take_due()) for _ in range(11)]
    assert taken == [1000] * 10 + [0]


def test_names_of_the_parent_are_not_those_of_a_forked_process(clock):
    uncommitted = Uncommitted(clock)
    uncommitted.add("a")
    uncommitted.reset_after_fork()
    assert uncommitted.next_look == math.inf

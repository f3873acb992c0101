"""How long after an end in one process those who wait in another have their answer."""

from __future__ import annotations

from collections.abc import Sequence

from tests.full.across.parties import Party

ENDS = {
    "complete": ("SUCCEEDED", "the truth"),
    "fail": ("FAILED", "the truth"),
    "acknowledge": ("CANCELLED", "the operation was cancelled"),
    "delete": ("NOT_FOUND", None),
}
"""What waiters learn, by how an operation was ended."""


def delays(parties: Sequence[Party], rounds: int, deaf: bool, look_again: float) -> list[float]:
    """Seconds from the answer to the second party's ``end`` to those of the third's waiters.

    In each round there is each end. One waiter is a thread, the other a coroutine. ``deaf``:
    all announcements are lost. ``look_again``: the seconds between two looks.
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

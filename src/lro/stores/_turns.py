"""The order in which waiting work is claimed: by rank, by turns of lanes, by due time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

import attrs

from lro._engine.store_port import SUSPECT
from lro.stores._counting import WAITS

UNBEGUN: Final = f"{WAITS} AND attempt = 0 AND begin_before IS NOT NULL"
"""Waiting work that ends if it has not begun by a certain time."""

IS_SUSPECT: Final = f"lost_attempts >= {SUSPECT}"

IS_SENT: Final = "sent_time IS NOT NULL"
"""Waiting work whose name was sent to a worker."""

MOST_LANES: Final = 100
"""The most lanes of a method that one claim looks at, each way from where it starts.

If none of them has anything for it, it reads the whole index for the lane whose work has been due
for longest, and looks from there. What is found by neither is for the next claim, which starts
elsewhere.
"""

MAX_LANE: Final = 2**63 - 1


@attrs.frozen
class Due:
    """An operation that a claim may take. ``place`` is that of its lane among those looked at."""

    method: str
    lane: int
    rank: int
    place: int
    due: int
    name: str


def in_turn(found: Iterable[Due], keyed: Collection[str]) -> list[Due]:
    """Put what is due in the order in which it is claimed: see ``Store.claim``."""
    plain = sorted(found, key=lambda one: (one.rank, one.due, one.name))
    if not keyed:
        return plain
    turns: Counter[tuple[str, int, int]] = Counter()
    first: dict[tuple[str, int], int] = {}
    order: list[tuple[tuple[int, int, int, int], int, Due]] = []
    for number, one in enumerate(plain):
        due, turn, place = one.due, 0, 0
        if one.method in keyed:
            due, place = first.setdefault((one.method, one.rank), one.due), one.place
            turn = turns[one.method, one.lane, one.rank]
            turns[one.method, one.lane, one.rank] += 1
        order.append(((one.rank, due, turn, place), number, one))
    return [one for *_, one in sorted(order)]

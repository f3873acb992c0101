"""The order of claims: by rank, then lanes in turn, then by due time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

import attrs

from lro._engine.store_port import SUSPECT
from lro.stores._counting import WAITS

UNBEGUN: Final = f"{WAITS} AND attempt = 0 AND begin_before IS NOT NULL"
"""SQL condition: the work waits for its first attempt, and has a deadline for beginning."""

IS_SUSPECT: Final = f"lost_attempts >= {SUSPECT}"

IS_SENT: Final = "sent_time IS NOT NULL"
"""SQL condition: the name of the waiting work was sent to a worker."""

MOST_LANES: Final = 100
"""The most lanes of a method that one claim reads on either side of the lane where it starts.

If none of these lanes has work to claim, the claim searches the whole index for the work that has
been due for longest, and starts again at the lane of that work. The lanes that were not read are
left to the next claim, which starts at another lane.
"""

MAX_LANE: Final = 2**63 - 1


@attrs.frozen
class Due:
    """An operation that a claim may take; ``place`` is the position at which its lane was read."""

    method: str
    lane: int
    rank: int
    place: int
    due: int
    name: str


def in_turn(found: Iterable[Due], keyed: Collection[str]) -> list[Due]:
    """Sort due operations in the order of claims: see ``Store.claim``."""
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

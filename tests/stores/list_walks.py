"""Page through lists that change between pages, and check each page against the whole list."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import attrs

from lro import Code, Empty, LroError, Service, Status, TypeRegistry
from lro._model.operation import end, report
from lro.adapters import Change, Record
from lro.executors.inline import InlineExecutor
from lro.testing import START, ManualClock
from lro.wire import ListOperationsRequest
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

METHOD: Final = "acme.v1.Works.Work"
TYPES: Final = TypeRegistry(WorkMetadata)
EMPTY: Final = TYPES.pack(Empty())
EARLIER_WALKS: Final = 4
"""How many copies of earlier walks are kept, so that their tokens can be used again later."""

Key: TypeAlias = tuple[float, str]
"""The sort key of lists: the newest creation first, then by name (spec §3.4(2))."""

FILTERS: Final = (
    *("", "done = true", "state() = IN_PROGRESS", "state() = FAILED OR state() = SUCCEEDED"),
    *("NOT error.code = 13", "metadata.percent = 1", "metadata.percent > 0 AND done = false"),
    *("-metadata.percent:* AND (done = true OR metadata:*)", "name = *b* OR name = *0", "stage-2"),
    f"create_time() >= '{START.isoformat()[:17]}02Z'",
    f"create_time() < '{START.isoformat()[:17]}01Z' state() != CANCELLED",
)


def make_service(store: Any) -> Service:
    """Make a service that declares the method of the listed operations."""
    service = Service(store, InlineExecutor(), maintenance=False)
    service.declare(METHOD, request=WorkRequest, response=WorkResponse, metadata=WorkMetadata)
    return service


def insert(
    store: Any, parent: str, name: str, create_time: datetime, percent: int, **more: Any
) -> None:
    """Store an operation as if it had been started at ``create_time``."""
    record = Record(
        name=name,
        parent=parent,
        method=METHOD,
        metadata=metadata(percent),
        create_time=create_time,
        update_time=create_time,
        **more,
    )
    store.insert(record, EMPTY, None)


def metadata(percent: int) -> Any:
    """Pack the metadata of an operation with this progress."""
    return TYPES.pack(WorkMetadata(percent, f"Stage-{percent}"))


@attrs.define(kw_only=True)
class Walk:
    """A reader of the list: its token, the last key shown, and the names that it must still show.

    ``due`` holds the operations that have existed and matched since the walk began and that the
    walk has not shown yet. A walk ends when its token is empty; an earlier page may be short or
    empty.
    """

    token: str = ""
    last: Key | None = None
    due: set[str]
    ended: bool = False

    def copy(self) -> Walk:
        """Return an independent walk that continues from the same token."""
        return attrs.evolve(self, due=set(self.due))

    def take(self, names: list[str], token: str, matching: Mapping[str, Key]) -> None:
        """Check a page against the operations that match now."""
        assert not set(names) - matching.keys(), "shown, and does not match or is not there"
        keys = [matching[name] for name in names]
        before = [] if self.last is None else [self.last]
        ascending = all(one < other for one, other in itertools.pairwise(before + keys))
        assert ascending, "out of order, or shown twice"
        self.token, self.last = token, max(before + keys, default=None)
        self.due -= set(names)
        self.ended = not self.token
        passed = [name for name in self.due if self.ended or self._passed(matching[name])]
        assert not passed, f"never shown: {passed}"
        if self.ended:
            left = [name for name, key in matching.items() if not self._passed(key)]
            assert not left, f"no token, but these follow: {left}"

    def _passed(self, key: Key) -> bool:
        return self.last is not None and key <= self.last


class Walks:
    """A list under a new parent; random steps read pages of the list and change its operations.

    All lists can share ``service`` and ``clock``: their parents differ, and the clock only
    advances. The operations that match are those that a full list shows while nothing changes.
    """

    def __init__(self, service: Service, clock: ManualClock, seed: int) -> None:
        self.service, self.clock, self.chance = service, clock, random.Random(seed)
        self.parent = f"walks/{seed}"
        self.keys: dict[str, Key] = {}
        self.filter = FILTERS[seed % len(FILTERS)]
        self.walks: list[Walk] = []
        self.earlier: list[Walk] = []

    def run(self) -> None:
        """Fill the list, take random steps, and then finish all walks."""
        for _ in range(self.chance.randrange(12)):
            self.insert()
        self.start_over()
        changes = [self.insert, self.insert, self.complete, self.report, self.delete, self.advance]
        walks = [*[self.turn] * 5, self.return_to, self.start_over, self.delete_the_place]
        for _ in range(40):
            self.chance.choice(changes + walks)()
            matching = self.matching()
            for walk in (*self.walks, *self.earlier):
                walk.due &= matching.keys()
        for walk in (*self.walks, *self.earlier):  # earlier walks continue from old tokens
            for _ in range(100):
                if not walk.ended:
                    walk.take(*self.page(3, walk.token), matching)
            assert walk.ended, "the walk does not end"

    def insert(self) -> None:
        """Insert an operation, with or without an owner, at a random place of the order."""
        chance, moment = self.chance, self.chance.randrange(4)
        name = f"{self.parent}/operations/{chance.choice('aBb豈𝄞')}-{len(self.keys)}"
        created, percent = START + timedelta(seconds=moment), chance.randrange(3)
        lease = {"owner": "w", "attempt": 1, "lease_until": self.clock() + timedelta(days=99)}
        held = lease if chance.randrange(2) else {}
        insert(self.service.store, self.parent, name, created, percent, **held)
        insert(self.service.store, f"{self.parent}/below/it", f"{name}-below", created, percent)
        self.keys[name] = -moment, name

    def complete(self) -> None:
        """End an operation, so that it expires later."""
        code = self.chance.choice([0, 0, Code.CANCELLED, Code.INTERNAL])
        result = Status(code, "did not go well") if code else EMPTY
        kept = timedelta(seconds=self.chance.choice([0, 10, 300]))
        self.change(end(result, now=self.clock(), keep_for=kept))

    def report(self) -> None:
        """Report progress of an operation."""
        self.change(report(metadata(self.chance.randrange(3)), None, self.clock()))

    def change(self, change: Change) -> None:
        """Change a random operation; ignore the error if it is deleted or has ended."""
        with contextlib.suppress(LroError, IndexError):
            self.service.store.update(self.chance.choice([*self.keys]), change)

    def delete(self) -> None:
        """Delete a random operation."""
        with contextlib.suppress(LroError, IndexError):
            self.service.delete(self.chance.choice([*self.keys]))

    def delete_the_place(self) -> None:
        """Delete the operation that a walk showed last; the walk's token must still work."""
        for walk in self.walks[:1]:
            with contextlib.suppress(LroError):
                if walk.last is not None:
                    self.service.delete(walk.last[1])

    def advance(self) -> None:
        """Advance the clock so that operations expire; half the time, remove expired operations."""
        self.clock.advance(self.chance.choice([1, 10, 300]))
        if self.chance.randrange(2):
            self.service.store.expire(1000)

    def turn(self) -> None:
        """Read a page in every walk."""
        matching, size = self.matching(), self.chance.randint(1, 4)
        for walk in self.walks:
            if not walk.ended:
                self.earlier = [*self.earlier[-EARLIER_WALKS:], walk.copy()]
                walk.take(*self.page(size, walk.token), matching)

    def return_to(self) -> None:
        """Continue a walk from the token of an earlier page (spec §3.4(5))."""
        for walk in self.chance.sample(self.earlier, min(1, len(self.earlier))):
            self.walks = [self.walks[0], walk.copy()]

    def start_over(self) -> None:
        """Begin a new walk in place of the second one."""
        self.walks = [*self.walks[:1], Walk(due=set(self.matching()))]

    def page(self, size: int, token: str) -> tuple[list[str], str]:
        """Return the names on a page, and the next token."""
        request = ListOperationsRequest(
            name=self.parent, filter=self.filter, page_size=size, page_token=token
        )
        page = self.service.list(request)
        assert len(page.operations) <= size
        return [operation.name for operation in page.operations], page.next_page_token

    def matching(self) -> Mapping[str, Key]:
        """Return the names that the list shows now, with their sort keys."""
        names, token = self.page(1000, "")
        while token:
            some, token = self.page(1000, token)
            names += some
        return {name: self.keys[name] for name in names}

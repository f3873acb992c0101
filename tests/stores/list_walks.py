"""Walks through lists while the lists change: what a walk must show, beside the list as it is."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lro import Code, Empty, ListOperationsRequest, LroError, Service, Status, TypeRegistry
from lro._model.operation import end, report
from lro.adapters import Change, Record
from lro.executors.inline import InlineExecutor
from lro.testing import START, ManualClock
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

METHOD: Final = "acme.v1.Works.Work"
TYPES: Final = TypeRegistry(WorkMetadata)
EMPTY: Final = TYPES.pack(Empty())
EARLIER_WALKS: Final = 4
"""How many tokens of earlier pages are kept to go on from."""

Key: TypeAlias = tuple[float, str]
"""Sorts as lists do: newest creation first, equal times by name (spec §3.4(2))."""

FILTERS: Final = (
    *("", "done = true", "state() = IN_PROGRESS", "state() = FAILED OR state() = SUCCEEDED"),
    *("NOT error.code = 13", "metadata.percent = 1", "metadata.percent > 0 AND done = false"),
    *("-metadata.percent:* AND (done = true OR metadata:*)", "name = *b* OR name = *0", "stage-2"),
    f"create_time() >= '{START.isoformat()[:17]}02Z'",
    f"create_time() < '{START.isoformat()[:17]}01Z' state() != CANCELLED",
)


def make_service(store: Any) -> Service:
    """A service over a store that declares the method whose operations are listed."""
    service = Service(store, InlineExecutor(), maintenance=False)
    service.declare(METHOD, request=WorkRequest, response=WorkResponse, metadata=WorkMetadata)
    return service


def insert(
    store: Any, parent: str, name: str, create_time: datetime, percent: int, **more: Any
) -> None:
    """Store an operation as a start would have done at that time."""
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
    """Packed metadata of an operation that is so far."""
    return TYPES.pack(WorkMetadata(percent, f"Stage-{percent}"))


@attrs.define(kw_only=True)
class Walk:
    """A walk through the list: its token, where it is, and what it must still show.

    ``due`` are the operations that have been there and have matched since the walk began, and
    that it has not shown. It goes by the token alone: pages may be short, also empty.
    """

    token: str = ""
    last: Key | None = None
    due: set[str]
    ended: bool = False

    def copy(self) -> Walk:
        """Another walk that goes on from the same place."""
        return attrs.evolve(self, due=set(self.due))

    def take(self, names: list[str], token: str, matching: Mapping[str, Key]) -> None:
        """Check a page against what matches now."""
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


WHICH: Final = st.integers(0, 99)


class Walks(RuleBasedStateMachine):
    """A list under a new parent of a store, walked and changed in turns.

    ``service`` and ``clock`` serve all examples: their lists do not touch, and time only goes on.
    What matches is what the whole list shows while nothing changes.
    """

    parents = itertools.count()

    def __init__(self, service: Service, clock: ManualClock) -> None:
        super().__init__()
        self.service, self.clock = service, clock
        self.parent = f"walks/{next(self.parents)}"
        self.keys: dict[str, Key] = {}
        self.filter = ""
        self.walks: list[Walk] = []
        self.earlier: list[Walk] = []

    @initialize(
        filter=st.sampled_from(FILTERS),
        first=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=12),
    )
    def begin(self, filter: str, first: Iterable[tuple[int, int]]) -> None:
        """A list with something in it, and a walk at its beginning."""
        self.filter = filter
        for number, (moment, percent) in enumerate(first):
            self.insert(moment, percent, "aBb豈𝄞"[number % 5], held=bool(number % 2))
            if number % 3 == 0:
                self.complete(number, number % 2 * Code.INTERNAL, 300)
        self.start_over()

    @rule(
        moment=st.integers(0, 3),
        percent=st.integers(0, 2),
        letter=st.sampled_from("aBb豈𝄞"),
        held=st.booleans(),
    )
    def insert(self, moment: int, percent: int, letter: str, held: bool) -> None:
        """A new operation, anywhere in the order; one that is held is only hidden by a delete."""
        name = f"{self.parent}/operations/{letter}-{len(self.keys)}"
        created = START + timedelta(seconds=moment)
        lease = {"owner": "w", "attempt": 1, "lease_until": self.clock() + timedelta(days=99)}
        insert(self.service.store, self.parent, name, created, percent, **(lease if held else {}))
        insert(self.service.store, f"{self.parent}/below/it", f"{name}-below", created, percent)
        self.keys[name] = -moment, name

    @rule(
        which=WHICH,
        code=st.sampled_from([0, Code.CANCELLED, Code.INTERNAL]),
        seconds=st.sampled_from([0, 10, 300]),
    )
    def complete(self, which: int, code: int, seconds: int) -> None:
        """An operation ends, and expires so many seconds later."""
        result = Status(code, "did not go well") if code else EMPTY
        self.change(which, end(result, now=self.clock(), keep_for=timedelta(seconds=seconds)))

    @rule(which=WHICH, percent=st.integers(0, 2))
    def report(self, which: int, percent: int) -> None:
        """An operation gets on."""
        self.change(which, report(metadata(percent), None, self.clock()))

    def change(self, which: int, change: Change) -> None:
        """Change an operation, unless it is gone or over."""
        with contextlib.suppress(LroError, IndexError):
            self.service.store.update([*self.keys][which % max(1, len(self.keys))], change)

    @rule(which=WHICH)
    def delete(self, which: int) -> None:
        """An operation is deleted."""
        with contextlib.suppress(LroError, IndexError):
            self.service.delete([*self.keys][which % max(1, len(self.keys))])

    @precondition(lambda self: self.walks and self.walks[0].last)
    @rule()
    def delete_the_place(self) -> None:
        """The operation that was shown last is deleted: a token outlives it."""
        with contextlib.suppress(LroError):
            self.service.delete(self.walks[0].last[1])  # type: ignore[index]  # see above

    @rule(seconds=st.sampled_from([1, 10, 300]), sweep=st.booleans())
    def advance(self, seconds: int, sweep: bool) -> None:
        """Time goes on: something expires, and may be swept away."""
        self.clock.advance(seconds)
        if sweep:
            self.service.store.expire(1000)

    @rule(size=st.integers(1, 4))
    def turn(self, size: int) -> None:
        """Every walk reads a page."""
        matching = self.matching()
        for walk in self.walks:
            if not walk.ended:
                self.earlier = [*self.earlier[-EARLIER_WALKS:], walk.copy()]
                walk.take(*self.page(size, walk.token), matching)

    @precondition(lambda self: self.earlier)
    @rule(which=st.integers(0, EARLIER_WALKS))
    def return_to(self, which: int) -> None:
        """A walk goes on from the token of an earlier page (spec §3.4(5))."""
        self.walks = [self.walks[0], self.earlier[which % len(self.earlier)].copy()]

    @rule()
    def start_over(self) -> None:
        """Another walk begins, now."""
        self.walks = [*self.walks[:1], Walk(due=set(self.matching()))]

    @invariant()
    def forget(self) -> None:
        """Only what matches still can be due."""
        matching = self.matching()
        for walk in (*self.walks, *self.earlier):
            walk.due &= matching.keys()

    def teardown(self) -> None:
        """All walks come to their ends, those from earlier tokens too."""
        matching = self.matching()
        for walk in (*self.walks, *self.earlier):
            for _ in range(100):
                if not walk.ended:
                    walk.take(*self.page(3, walk.token), matching)
            assert walk.ended, "the walk does not end"

    def page(self, size: int, token: str) -> tuple[list[str], str]:
        """The names on a page, and the next token."""
        request = ListOperationsRequest(
            name=self.parent, filter=self.filter, page_size=size, page_token=token
        )
        page = self.service.list(request)
        assert len(page.operations) <= size
        return [operation.name for operation in page.operations], page.next_page_token

    def matching(self) -> Mapping[str, Key]:
        """What the list shows now, with the places."""
        names, token = self.page(1000, "")
        while token:
            some, token = self.page(1000, token)
            names += some
        return {name: self.keys[name] for name in names}


def run_walks(service: Service, clock: ManualClock, examples: int) -> None:
    """Walk and change so many lists."""
    run_state_machine_as_test(
        lambda: Walks(service, clock),  # type: ignore[arg-type]  # a function will do
        settings=settings(max_examples=examples, stateful_step_count=40, deadline=None),
    )

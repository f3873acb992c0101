"""Walks through lists while the lists change: what a walk must show, by a small model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lro import Code, Empty, ListOperationsRequest, Service, Status, TypeRegistry
from lro._model.operation import end, report
from lro.adapters import Record
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


def key_of(create_time: datetime, name: str) -> Key:
    """The place of an operation in a list."""
    return (START - create_time).total_seconds(), name


@attrs.define(kw_only=True)
class Known:
    """An operation, as the model knows it; ``code`` is that of its error, 0 while it has none."""

    key: Key
    percent: int
    state: str = "IN_PROGRESS"
    code: int = 0
    expires: datetime | None = None


def _since(moment: int) -> str:
    return (START + timedelta(seconds=moment)).isoformat().replace("+00:00", "Z")


FILTERS: Final[Mapping[str, Callable[[Known], bool]]] = {
    "": lambda one: True,
    "done = true": lambda one: one.state != "IN_PROGRESS",
    "state() = IN_PROGRESS": lambda one: one.state == "IN_PROGRESS",
    "state() = FAILED OR state() = SUCCEEDED": lambda one: one.state in ("FAILED", "SUCCEEDED"),
    "NOT error.code = 13": lambda one: one.code != 13,
    "metadata.percent = 1": lambda one: one.percent == 1,
    "metadata.percent > 0 AND done = false": (
        lambda one: one.percent > 0 and one.state == "IN_PROGRESS"
    ),
    "-metadata.percent:* AND (done = true OR metadata:*)": lambda one: one.percent == 0,
    f"create_time() >= '{_since(2)}'": lambda one: one.key[0] <= -2,
    f"create_time() < '{_since(1)}' state() != CANCELLED": (
        lambda one: one.key[0] > -1 and one.state != "CANCELLED"
    ),
    "name = *b* OR name = *0": lambda one: "b" in one.key[1] or one.key[1].endswith("0"),
    "stage-2": lambda one: one.percent == 2,
}
"""Filters, and the same said in Python."""


def make_service(store: Any, clock: ManualClock | None = None) -> Service:
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

    service: Service
    parent: str
    filter: str
    token: str = ""
    last: Key | None = None
    due: set[str]
    ended: bool = False

    def copy(self) -> Walk:
        """Another walk that goes on from the same place."""
        return attrs.evolve(self, due=set(self.due))

    def narrow(self, matching: Mapping[str, Known]) -> None:
        """The list has changed: only what matches still can be due."""
        self.due &= matching.keys()

    def turn(self, size: int, matching: Mapping[str, Known]) -> int:
        """Read a page and check it against what matches now; how many operations it shows."""
        request = ListOperationsRequest(
            name=self.parent, filter=self.filter, page_size=size, page_token=self.token
        )
        page = self.service.list(request)
        names = [operation.name for operation in page.operations]
        assert len(names) <= size
        assert not set(names) - matching.keys(), "shown, and does not match or is not there"
        keys = [matching[name].key for name in names]
        before = [] if self.last is None else [self.last]
        ascending = all(one < other for one, other in itertools.pairwise(before + keys))
        assert ascending, "out of order, or shown twice"
        self.token, self.last = page.next_page_token, max(before + keys, default=None)
        self.due -= set(names)
        self.ended = not self.token
        passed = [name for name in self.due if self.ended or self._passed(matching[name].key)]
        assert not passed, f"never shown: {passed}"
        if self.ended:
            left = [name for name, one in matching.items() if not self._passed(one.key)]
            assert not left, f"no token, but these follow: {left}"
        return len(names)

    def _passed(self, key: Key) -> bool:
        return self.last is not None and key <= self.last


class Walks(RuleBasedStateMachine):
    """A list under a new parent of a store, walked and changed in turns.

    ``service`` and ``clock`` serve all examples: their lists do not touch, and time only goes on.
    """

    parents = itertools.count()

    def __init__(self, service: Service, clock: ManualClock) -> None:
        super().__init__()
        self.service, self.clock = service, clock
        self.parent = f"walks/{next(self.parents)}"
        self.known: dict[str, Known] = {}
        self.count = 0
        self.filter = ""
        self.walks: list[Walk] = []
        self.earlier: list[Walk] = []

    @initialize(
        filter=st.sampled_from(list(FILTERS)),
        first=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=12),
    )
    def begin(self, filter: str, first: Iterable[tuple[int, int]]) -> None:
        """A list with something in it, and a walk at its beginning."""
        self.filter = filter
        for number, (moment, percent) in enumerate(first):
            self.insert(moment, percent, "aBb豈𝄞"[number % 5], held=bool(number % 2))
            if number % 3 == 0:
                self.complete(number, number % 2 * Code.INTERNAL, 300)
        self.walks = [self.walk()]

    def walk(self) -> Walk:
        """A walk at the beginning."""
        due = set(self.matching())
        return Walk(service=self.service, parent=self.parent, filter=self.filter, due=due)

    @rule(
        moment=st.integers(0, 3),
        percent=st.integers(0, 2),
        letter=st.sampled_from("aBb豈𝄞"),
        held=st.booleans(),
    )
    def insert(self, moment: int, percent: int, letter: str, held: bool) -> None:
        """A new operation, anywhere in the order; one that is held is only hidden by a delete."""
        self.count += 1
        name = f"{self.parent}/operations/{letter}-{self.count}"
        created = START + timedelta(seconds=moment)
        lease = {"owner": "w", "attempt": 1, "lease_until": self.clock() + timedelta(days=99)}
        insert(self.service.store, self.parent, name, created, percent, **(lease if held else {}))
        insert(self.service.store, f"{self.parent}/below/it", f"{name}-below", created, percent)
        self.known[name] = Known(key=key_of(created, name), percent=percent)
        self.changed()

    @precondition(lambda self: self.known)
    @rule(
        which=st.integers(0, 99),
        code=st.sampled_from([0, Code.CANCELLED, Code.INTERNAL]),
        seconds=st.sampled_from([0, 10, 300]),
    )
    def complete(self, which: int, code: int, seconds: int) -> None:
        """An operation ends, and expires so many seconds later."""
        name, one = self.pick(which)
        if one.state != "IN_PROGRESS":
            return
        result = Status(code, "did not go well") if code else EMPTY
        change = end(result, now=self.clock(), keep_for=timedelta(seconds=seconds))
        self.service.store.update(name, change)
        states = {0: "SUCCEEDED", Code.CANCELLED: "CANCELLED", Code.INTERNAL: "FAILED"}
        one.state, one.code = states[code], code
        one.expires = self.clock() + timedelta(seconds=seconds)
        self.changed()

    @precondition(lambda self: self.known)
    @rule(which=st.integers(0, 99), percent=st.integers(0, 2))
    def report(self, which: int, percent: int) -> None:
        """An operation gets on."""
        name, one = self.pick(which)
        if one.state == "IN_PROGRESS":
            self.service.store.update(name, report(metadata(percent), None, self.clock()))
            one.percent = percent
            self.changed()

    @precondition(lambda self: self.known)
    @rule(which=st.integers(0, 99))
    def delete(self, which: int) -> None:
        """An operation is deleted."""
        name, _ = self.pick(which)
        self.service.delete(name)
        del self.known[name]
        self.changed()

    @precondition(lambda self: self.walks and self.walks[0].last)
    @rule()
    def delete_the_place(self) -> None:
        """The operation that was shown last is deleted: a token outlives it."""
        for name in [name for name, one in self.known.items() if one.key == self.walks[0].last]:
            self.service.delete(name)
            del self.known[name]
        self.changed()

    @rule(seconds=st.sampled_from([1, 10, 300]), sweep=st.booleans())
    def advance(self, seconds: int, sweep: bool) -> None:
        """Time goes on: something expires, and may be swept away."""
        self.clock.advance(seconds)
        if sweep:
            self.service.store.expire(1000)
        self.changed()

    @rule(size=st.integers(1, 4))
    def turn(self, size: int) -> None:
        """Every walk reads a page."""
        matching = self.matching()
        for walk in self.walks:
            if not walk.ended:
                self.earlier = [*self.earlier[-EARLIER_WALKS:], walk.copy()]
                walk.turn(size, matching)

    @precondition(lambda self: self.earlier)
    @rule(which=st.integers(0, EARLIER_WALKS))
    def return_to(self, which: int) -> None:
        """A walk goes on from the token of an earlier page (spec §3.4(5))."""
        self.walks = [self.walks[0], self.earlier[which % len(self.earlier)].copy()]

    @rule()
    def start_over(self) -> None:
        """Another walk begins, now."""
        self.walks = [self.walks[0], self.walk()]

    def teardown(self) -> None:
        """All walks come to their ends, those from earlier tokens too."""
        matching = self.matching()
        for walk in (*self.walks, *self.earlier):
            turns = itertools.count()
            while not walk.ended:
                walk.turn(3, matching)
                assert next(turns) < 100, "the walk does not end"

    def pick(self, which: int) -> tuple[str, Known]:
        """One of the operations that are there."""
        names = list(self.known)
        name = names[which % len(names)]
        return name, self.known[name]

    def matching(self) -> Mapping[str, Known]:
        """What a list would show now."""
        match = FILTERS[self.filter]
        return {name: one for name, one in self.known.items() if match(one)}

    def changed(self) -> None:
        """Forget what has expired, in the store and in the walks."""
        now = self.clock()
        kept = {n: one for n, one in self.known.items() if not one.expires or now < one.expires}
        self.known = kept
        matching = self.matching()
        for walk in (*self.walks, *self.earlier):
            walk.narrow(matching)


def run_walks(service: Service, clock: ManualClock, examples: int, **options: Any) -> None:
    """Walk and change so many lists; ``options`` are more settings of Hypothesis."""
    run_state_machine_as_test(
        lambda: Walks(service, clock),  # type: ignore[arg-type]  # a function will do
        settings=settings(max_examples=examples, stateful_step_count=40, deadline=None, **options),
    )

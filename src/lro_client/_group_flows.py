"""Waiting for many operations together, written once for both faces."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import attrs

from lro import DeclarationError, Operation
from lro_client._client_state import ClientState
from lro_client._errors import ClientError, GroupTimeout, again
from lro_client._flow.poll_state import GRACE_SECONDS
from lro_client._flow.steps import Emit, Flow, Receive
from lro_client._handle_flows import taken
from lro_client._handles import HandleBase, Update
from lro_client._watch.registry import News, Seen, Unreachable, Want, WatchedOperation

H = TypeVar("H", bound=HandleBase[Any, Any])


@attrs.frozen
class GroupResult(Generic[H]):
    """Whom a wait has found done, in the order of their end, and whom not."""

    done: tuple[H, ...]
    pending: tuple[H, ...]


class GroupWatch(Generic[H]):
    """Handles whose ends, or changes, come into one box. A context: leaving it ends that."""

    def __init__(
        self,
        state: ClientState,
        handles: Sequence[H],
        timeout: float | None,
        *,
        curious: bool = False,
    ) -> None:
        self._state = state
        self._timeout = timeout
        self.deadline = math.inf if timeout is None else state.config.clock() + timeout
        self._curious = curious
        self._box = state.box()
        self._lock = threading.Lock()
        self._news: dict[str, News] = {}
        """The last of each name, which is in the box as long as it is here."""
        self._ready = [handle for handle in handles if handle._over]
        self._pending: dict[str, list[H]] = {}
        for handle in handles:
            if not handle._over:
                self._pending.setdefault(handle.name, []).append(handle)
        self._entries: dict[str, WatchedOperation] = {}

    def __enter__(self) -> GroupWatch[H]:
        wants = {}
        for name, handles in self._pending.items():
            fits = functools.partial(_fits, tuple(handles))
            want = Want(self._curious, self.deadline, fits)
            # To the curious, the first state is news too.
            wants[name] = want, None if self._curious else handles[0].operation
        self._entries = self._state.table.subscribe_all(self._hear, wants)
        return self

    def __exit__(self, *_: object) -> None:
        for name, entry in self._entries.items():
            self._state.table.leave(name, self._hear)
            for handle in self._pending.get(name, ()):
                handle._polled(entry.polls)

    @property
    def pending(self) -> tuple[H, ...]:
        """Those of whom no end was heard."""
        return tuple(handle for handles in self._pending.values() for handle in handles)

    def next(self) -> Flow[list[H]]:
        """Those who have changed next; none if nobody is left, or the time is over."""
        if self._ready:
            ready, self._ready = self._ready, []
            return ready
        if not self._pending:
            return []
        left = None
        if self._timeout is not None:
            left = self.deadline + GRACE_SECONDS - self._state.config.clock()
        name: str | None = yield Receive(self._box, left if left is None else max(0.0, left))
        if name is None:
            return []
        with self._lock:
            news = self._news.pop(name)
        if isinstance(news, Unreachable) and self._state.table.closed is not None:
            raise again(news.error)
        entry, handles = self._entries[news.name], self._pending[news.name]
        if isinstance(news, Unreachable):
            for handle in handles:
                handle._lost(news.error)
        if isinstance(news, Unreachable) or news.operation.done:
            del self._pending[news.name]
            for handle in handles:
                handle._polled(entry.polls)
        if not isinstance(news, Unreachable):
            for handle in handles:
                handle._seen(news.operation)
        return handles

    def _hear(self, news: News) -> None:
        # Who takes them slowly finds the last of each, and lanes may tell in another order.
        with self._lock:
            known = self._news.get(news.name)
            if isinstance(known, Seen) and known.operation.done:
                return
            self._news[news.name] = news
        if known is None:
            self._box.put(news.name)

    def late(self) -> GroupTimeout:
        """The error of a group that is not over in time."""
        pending = self.pending
        first = self._entries[pending[0].name]
        return GroupTimeout(
            tuple(handle.name for handle in pending),
            self._timeout or 0.0,
            first.polls,
            first.operation,
            first.failures.last,
        )


def _fits(handles: Iterable[HandleBase[Any, Any]], operation: Operation) -> bool:
    return all(handle._fits(operation) for handle in handles)


def members(handles: Iterable[H]) -> tuple[H, ...]:
    """The handles of a group.

    Raises:
        TypeError: One is none.
    """
    found = tuple(handles)
    for one in found:
        if not isinstance(one, HandleBase):
            raise TypeError(f"a group is of handles, as client.operation() gives, not {one!r:.80}")
    return found


def as_completed(state: ClientState, handles: Sequence[H], timeout: float | None) -> Flow[None]:
    """Shows each handle when its operation is over, the first one first."""
    with GroupWatch(state, handles, timeout) as gathering:
        while found := (yield from gathering.next()):
            for handle in found:
                yield Emit(handle)
        if gathering.pending:
            raise gathering.late()


def wait(
    state: ClientState, handles: Sequence[H], count: int | None, timeout: float | None
) -> Flow[GroupResult[H]]:
    """Wait until so many operations are over (None: all), or the time is."""
    if not (count is None or isinstance(count, int)):
        raise TypeError(f"count is how many must be over, a whole number, got {count!r}")
    wanted = len(handles) if count is None else min(count, len(handles))
    done: list[H] = []
    with GroupWatch(state, handles, timeout) as gathering:
        while len(done) < wanted and (found := (yield from gathering.next())):
            done += found
        return GroupResult(tuple(done), gathering.pending)


def results(
    state: ClientState, handles: Sequence[H], timeout: float | None, *, collect: bool
) -> Flow[list[Any]]:
    """The results in the order of the handles; the first failure is raised, unless collected."""
    found: dict[int, Any] = {}
    with GroupWatch(state, handles, timeout) as gathering:
        while ended := (yield from gathering.next()):
            for handle in ended:
                try:
                    found[id(handle)] = yield from taken(state, handle, gathering.deadline)
                except (ClientError, DeclarationError) as exc:  # of a name that cannot be sent
                    if not collect:
                        raise
                    found[id(handle)] = exc
        if gathering.pending:
            raise gathering.late()
    return [found[id(handle)] for handle in handles]


def updates(state: ClientState, handles: Sequence[H], timeout: float | None) -> Flow[None]:
    """Shows each change of each operation, the end included, until all are over."""
    with GroupWatch(state, handles, timeout, curious=True) as gathering:
        while found := (yield from gathering.next()):
            for handle in found:
                yield Emit(Update(handle, handle.operation))
        if gathering.pending:
            raise gathering.late()

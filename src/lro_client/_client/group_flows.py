"""The flows that wait for many operations together, for blocking and async clients."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import attrs

from lro import Operation
from lro.types import ByFields
from lro_client._client.handles import HandleBase, Update
from lro_client._client.state import ClientState
from lro_client._errors import GroupTimeout, again
from lro_client._flow.poll_state import GRACE_SECONDS
from lro_client._flow.steps import Flow, Receive, YieldValue
from lro_client._watch.registry import WatchedOperation, WatchEvent, WatchFailed, WatchOptions

H = TypeVar("H", bound=HandleBase[Any, Any])


@attrs.frozen(eq=False, repr=False)
class GroupResult(ByFields, Generic[H]):
    """The handles that are done, in the order in which they ended, and the pending handles."""

    done: tuple[H, ...]
    pending: tuple[H, ...]


class GroupWatch(Generic[H]):
    """Watches handles. One channel receives the ends of their operations, or all changes."""

    def __init__(
        self,
        state: ClientState,
        handles: Sequence[H],
        timeout: float | None,
        *,
        wants_progress: bool = False,
    ) -> None:
        self._state, self._registry = state, state.registry
        self._timeout = timeout
        self.deadline = math.inf if timeout is None else state.config.clock() + timeout
        self._wants_progress = wants_progress
        self._channel = state.channel()
        self._lock = threading.Lock()
        self._events: dict[str, WatchEvent] = {}
        """The last event of each name in the channel, and the events of ends that were received."""
        self._ready = [handle for handle in handles if handle.done]
        self._pending: dict[str, tuple[H, ...]] = {}
        for handle in handles:
            if not handle.done:
                self._pending[handle.name] = (*self._pending.get(handle.name, ()), handle)
        self._entries: dict[str, WatchedOperation] = {}

    def __enter__(self) -> GroupWatch[H]:
        want = WatchOptions(self._wants_progress, self.deadline, self._fits)
        known: Mapping[str, Operation | None] = dict.fromkeys(self._pending)
        if not self._wants_progress:  # with progress, the channel also gets the first state
            known = {name: handles[0].operation for name, handles in self._pending.items()}
        self._entries = self._registry.subscribe_all(self._listen, want, known)
        return self

    def __exit__(self, *_: object) -> None:
        for name, entry in self._entries.items():
            self._registry.leave(name, self._listen)
            for handle in self._pending.get(name, ()):
                handle._count_polls(entry.polls)

    @property
    def pending(self) -> tuple[H, ...]:
        """The handles whose operations have not ended, as far as is known."""
        return tuple(handle for handles in self._pending.values() for handle in handles)

    def next(self) -> Flow[Sequence[H]]:
        """Return the next changed handles, or none if all have ended or the timeout expired."""
        if self._ready:
            ready, self._ready = self._ready, []
            return ready
        if not self._pending:
            return []
        left = None
        if self._timeout is not None:
            left = self.deadline + GRACE_SECONDS - self._state.config.clock()
        name: str | None = yield Receive(self._channel, left if left is None else max(0.0, left))
        if name is None:
            return []
        with self._lock:
            news = self._events[name]
            ended = _is_end(news)
            if not ended:
                del self._events[name]
        if isinstance(news, WatchFailed) and self._registry.closed is not None:
            raise again(news.error)
        entry, handles = self._entries[news.name], self._pending[news.name]
        if isinstance(news, WatchFailed):
            for handle in handles:
                handle._give_up(news.error)
        if ended:
            del self._pending[news.name]
            for handle in handles:
                handle._count_polls(entry.polls)
        if not isinstance(news, WatchFailed):
            for handle in handles:
                handle._take_state(news.operation)
        return handles

    def _fits(self, operation: Operation) -> bool:
        handles = self._pending.get(operation.name, ())
        return all(handle._fits(operation) for handle in handles)

    def _listen(self, news: WatchEvent) -> None:
        # A slow reader gets only the last state. A state that follows the end is dropped.
        with self._lock:
            known = self._events.get(news.name)
            if known is not None and _is_end(known):
                return
            self._events[news.name] = news
        if known is None:
            self._channel.put(news.name)

    def timeout_error(self) -> GroupTimeout:
        """Return the error for a group whose timeout expired."""
        pending = self.pending
        first = self._entries[pending[0].name]
        return GroupTimeout(
            tuple(handle.name for handle in pending),
            self._timeout or 0.0,
            first.polls,
            first.operation,
            first.failures.last,
        )


def _is_end(news: WatchEvent) -> bool:
    return isinstance(news, WatchFailed) or news.operation.done


def members(handles: Iterable[H]) -> tuple[H, ...]:
    """Return the handles of a group.

    Raises:
        TypeError: An item is not a handle.
    """
    if not isinstance(handles, Iterable):
        raise TypeError(f"a group is of a list of handles, not {handles!r:.80}")
    found = tuple(handles)
    for one in found:
        if not isinstance(one, HandleBase):
            raise TypeError(f"a group is of handles, as client.operation() gives, not {one!r:.80}")
    return found


def as_completed(state: ClientState, handles: Sequence[H], timeout: float | None) -> Flow[None]:
    """Yield each handle when its operation ends."""
    with GroupWatch(state, handles, timeout) as gathering:
        while found := (yield from gathering.next()):
            for handle in found:
                yield YieldValue(handle)
        if gathering.pending:
            raise gathering.timeout_error()


def wait(
    state: ClientState, handles: Sequence[H], count: int | None, timeout: float | None
) -> Flow[GroupResult[H]]:
    """Wait until ``count`` operations have ended (None: all), or the timeout expires."""
    if not (count is None or isinstance(count, int)):
        raise TypeError(f"count must be None or a whole number, got {count!r}")
    wanted = len(handles) if count is None else min(count, len(handles))
    done: list[H] = []
    with GroupWatch(state, handles, timeout) as gathering:
        while len(done) < wanted and (found := (yield from gathering.next())):
            done += found
        return GroupResult(tuple(done), gathering.pending)


def results(
    state: ClientState, handles: Sequence[H], timeout: float | None, *, collect: bool
) -> Flow[list[Any]]:
    """Return results in the order of the handles. Raise the first failure, or collect failures."""
    found: dict[int, Any] = {}
    with GroupWatch(state, handles, timeout) as gathering:
        while ended := (yield from gathering.next()):
            for handle in ended:
                try:
                    found[id(handle)] = handle._result()
                except Exception as exc:  # also errors of the HTTP library and its authentication
                    if not collect:
                        raise
                    found[id(handle)] = exc
        if gathering.pending:
            raise gathering.timeout_error()
    return [found[id(handle)] for handle in handles]


def updates(state: ClientState, handles: Sequence[H], timeout: float | None) -> Flow[None]:
    """Yield each change of each operation, until all have ended."""
    with GroupWatch(state, handles, timeout, wants_progress=True) as gathering:
        while found := (yield from gathering.next()):
            for handle in found:
                yield YieldValue(Update(handle, handle.operation))
        if gathering.pending:
            raise gathering.timeout_error()

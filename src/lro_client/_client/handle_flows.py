"""The flows of handles of blocking and async clients: start, wait, result and cancel."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from lro import Operation
from lro.wire import CancelOperationRequest, DeleteOperationRequest, RerunOperationRequest
from lro_client import _arguments
from lro_client._client.handles import HandleBase, KnownOperation
from lro_client._client.state import ClientState
from lro_client._errors import CallError, ClientError, PollTimeout, again
from lro_client._flow import polling, single
from lro_client._flow.drivers import CALL_THREADS
from lro_client._flow.poll_state import GRACE_SECONDS
from lro_client._flow.steps import Call, Flow, Gather, Receive, Sleep, StartRequest
from lro_client._tracing import Trace, log_gave_up, log_started, log_verb
from lro_client._watch.registry import StateChanged, WatchEvent, WatchFailed, WatchOptions

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

Resp = TypeVar("Resp")
_CANCELS_AT_ONCE: Final = 8

MAX_LEAVE_SECONDS: Final = 5.0
"""Maximum seconds of the Cancel that is sent when a ``with`` block is left."""


def start(state: ClientState, request: StartRequest) -> Flow[KnownOperation]:
    """Start an operation.

    Raises:
        CallError: The call failed. The work may still have started, for example after UNAVAILABLE.
    """
    trace = Trace.begin(request.target)
    headers = trace.headers() if trace else {}
    operation = single.read((yield from single.single(state.config, request, headers)))
    log_started(operation, request.target)
    return KnownOperation(operation, trace)


def rerun(state: ClientState, request: RerunOperationRequest) -> Flow[Operation]:
    """Start the work of an operation again.

    Raises:
        CallError: As for :func:`start`.
    """
    operation = single.read((yield from single.single(state.config, request)))
    log_started(operation, f"a rerun of {request.name}")
    return operation


def wait(
    state: ClientState, handle: HandleBase[typing.Any, typing.Any], timeout: float | None
) -> Flow[Operation]:
    """Wait until an operation is done, and return its last state.

    Raises:
        PollTimeout: The timeout expired.
        OperationGone: The operation does not exist any more.
        CallError: A poll failed with an error that is not retried.
    """
    if not handle.done:
        handle._check_exists()
        try:
            with state.own_call() as alone:
                if alone:
                    operation = yield from poll(state, handle, timeout)
                else:
                    operation = yield from _with_others(state, handle, timeout)
        except (CallError, PollTimeout) as exc:
            log_gave_up(handle.name, exc)
            raise
        handle._take_state(operation)
    return handle.operation


def poll(
    state: ClientState, handle: HandleBase[typing.Any, typing.Any], timeout: float | None
) -> Flow[Operation]:
    """Wait with separate calls for this operation."""
    known, count = handle.operation, handle._count_polls
    return polling.until_done(state.config, handle.name, known, timeout, count, handle._fits)


def updates(
    state: ClientState,
    handle: HandleBase[typing.Any, typing.Any],
    timeout: float | None,
    every: float | None,
) -> Flow[Operation]:
    """Yield each changed state until the operation is done.

    Raises:
        DeclarationError: ``every`` is neither None nor a number of seconds above 0.
    """
    if every is not None:
        _arguments.check_seconds("every", every)
    return polling.until_done(
        state.config,
        handle.name,
        handle.operation,
        timeout,
        handle._count_polls,
        handle._fits,
        changes=True,
        every=every,
    )


def _with_others(
    state: ClientState, handle: HandleBase[typing.Any, typing.Any], timeout: float | None
) -> Flow[Operation]:
    clock = state.config.clock
    deadline = math.inf if timeout is None else clock() + timeout
    box = state.channel()
    want = WatchOptions(deadline=deadline, fits=handle._fits)
    registry = state.registry
    entry = registry.subscribe(handle.name, box.put, want, handle.operation)
    try:
        left = None if timeout is None else max(0.0, timeout) + GRACE_SECONDS
        news = yield Receive(box, left)
    finally:
        registry.leave(handle.name, box.put)
        handle._count_polls(entry.polls)
    if news is None:
        assert timeout is not None
        raise PollTimeout(handle.name, timeout, entry.polls, entry.operation, entry.failures.last)
    if isinstance(news, WatchFailed):
        raise again(news.error)  # a copy, because each waiter needs its own traceback
    found: Operation = news.operation
    return found


def result(
    state: ClientState, handle: HandleBase[Resp, typing.Any], timeout: float | None
) -> Flow[Resp]:
    """Wait as :func:`wait` does, and return the response.

    Raises:
        OperationFailed: The operation ended with an error.
        OperationCancelled: The operation was cancelled.
        DecodingError: The response is not of the declared type.
        PollTimeout, OperationGone, CallError: As for :func:`wait`.
    """
    yield from wait(state, handle, timeout)
    return handle._result()


def cancel(
    state: ClientState, handle: HandleBase[typing.Any, typing.Any], within: float | None = None
) -> Flow[None]:
    """Ask for the work to stop. All attempts together take at most ``within`` seconds.

    Raises:
        CallError: The call failed.
    """
    handle._check_exists()
    yield from single.single(state.config, CancelOperationRequest(handle.name), within=within)
    log_verb(handle.name, "CancelOperation")


def cancel_and_wait(
    state: ClientState, handle: HandleBase[typing.Any, typing.Any], timeout: float | None
) -> Flow[Operation]:
    """Ask for the work to stop, and wait until the operation ends, cancelled or not (spec §2.6).

    Raises:
        CallError: The cancel failed.
        PollTimeout, OperationGone: As for :func:`wait`.
    """
    if timeout is None:
        if not handle.done:
            yield from cancel(state, handle)
        return (yield from wait(state, handle, None))
    clock = state.config.clock
    deadline = clock() + timeout
    if not handle.done:
        try:
            yield from cancel(state, handle, within=timeout)
        except CallError as exc:
            if clock() < deadline:
                raise
            raise PollTimeout(handle.name, timeout, 1, handle.operation, exc) from exc
    return (yield from wait(state, handle, max(0.0, deadline - clock())))


def delete(state: ClientState, handle: HandleBase[typing.Any, typing.Any]) -> Flow[None]:
    """Remove the record of an operation.

    Raises:
        CallError: The call failed.
    """
    handle._check_exists()
    yield from single.single(state.config, DeleteOperationRequest(handle.name))
    log_verb(handle.name, "DeleteOperation")


def cancel_unfinished(
    state: ClientState,
    handles: Sequence[HandleBase[typing.Any, typing.Any]],
    seconds: float = MAX_LEAVE_SECONDS,
) -> Flow[None]:
    """Cancel the operations that are not done, in at most ``seconds`` in total. Never raise."""
    clock = state.config.clock
    until = clock() + seconds
    running = [handle for handle in handles if not handle.done]
    while running and (left := until - clock()) > 0:
        some, running = running[:_CANCELS_AT_ONCE], running[_CANCELS_AT_ONCE:]
        asked = [CancelOperationRequest(handle.name) for handle in some]
        budget = min(left, state.config.call_seconds)
        found = yield Gather([Call(request=one, budget=budget) for one in asked])
        early: list[HandleBase[typing.Any, typing.Any]] = []
        for handle, outcome in zip(some, found, strict=True):
            again = clock() + single.YOUNG_PAUSE_SECONDS < until
            if again and single.is_early(state.config, handle.name, outcome):
                early.append(handle)
            elif isinstance(outcome, Exception):
                log_gave_up(handle.name, outcome)
        if early and not running:
            yield Sleep(single.YOUNG_PAUSE_SECONDS)
        running += early


def future(state: ClientState, handle: HandleBase[Resp, typing.Any]) -> Future[Resp]:
    """Return a future for threads. Its callbacks run in one of the threads for calls."""
    from concurrent.futures import Future  # imported late, because few clients use it

    made: Future[Resp] = Future()

    def hear(news: WatchEvent) -> None:
        CALL_THREADS.start(lambda: set_future(made, handle, news), lambda _: None)

    _hear_end(state, handle, hear, made)
    return made


def async_future(state: ClientState, handle: HandleBase[Resp, typing.Any]) -> asyncio.Future[Resp]:
    """Return a future of the running event loop."""
    import asyncio  # already loaded, since an event loop runs

    loop = asyncio.get_running_loop()
    made: asyncio.Future[Resp] = loop.create_future()

    def hear(news: WatchEvent) -> None:
        if not (made.done() or loop.is_closed()):
            _give(made, handle, news)

    _hear_end(state, handle, hear, made)
    return made


def set_future(
    future: Future[Resp], handle: HandleBase[Resp, typing.Any], news: WatchEvent
) -> None:
    """Set the outcome of a future for threads, unless it was cancelled."""
    if future.set_running_or_notify_cancel():
        _give(future, handle, news)


def _hear_end(
    state: ClientState,
    handle: HandleBase[typing.Any, typing.Any],
    hear: Callable[[WatchEvent], object],
    future: Future[Resp] | asyncio.Future[Resp],
) -> None:
    if handle.done:
        hear(StateChanged(handle.name, handle.operation))
    else:
        registry = state.registry
        registry.subscribe(handle.name, hear, WatchOptions(fits=handle._fits), handle.operation)
        future.add_done_callback(lambda _: registry.leave(handle.name, hear))


def _give(
    future: Future[Resp] | asyncio.Future[Resp],
    handle: HandleBase[Resp, typing.Any],
    news: WatchEvent,
) -> None:
    if isinstance(news, WatchFailed):
        future.set_exception(again(news.error))
        return
    handle._take_state(news.operation)
    try:
        found = handle._result()
    except ClientError as exc:
        future.set_exception(exc)
    else:
        future.set_result(found)

"""What handles do, written once: start, wait, give the result, cancel and see what comes of it."""

from __future__ import annotations

import functools
import math
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar, cast

import attrs

from lro import (
    Any,
    CancelOperationRequest,
    Code,
    DeclarationError,
    DeleteOperationRequest,
    Operation,
)
from lro.types import Json
from lro.wire import dumps
from lro_client._client_state import ClientState
from lro_client._errors import CallError, OperationFailed, PollTimeout, again
from lro_client._flow import polling, single
from lro_client._flow.poll_state import GRACE_SECONDS
from lro_client._flow.steps import Call, Flow, Gather, Receive, RunBlocking, StartRequest
from lro_client._handles import HandleBase, StartedOperation
from lro_client._journal.entries import Entry
from lro_client._journal.journal import Journal, JournalError
from lro_client._tokens import message_name
from lro_client._tracing import Trace, log, log_gave_up, log_started, log_verb
from lro_client._watch.registry import Unreachable, Want

Resp = TypeVar("Resp")
_CANCELS_AT_ONCE: Final = 8

LAST_WORD_SECONDS: Final = 5.0
"""So long a Cancel may take that is sent because somebody leaves."""

AFTERWARDS_SECONDS: Final = 5.0
"""So long a journal that others hold may keep back a handle or a result that is here already."""

_FLOOR_SECONDS: Final = 0.02
"""So long at least: others write for a few ms each, and deadlines are kept to within 50 ms."""

_UNSURE: Final = frozenset(
    {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED}
    | {Code.ABORTED}
)
"""After a start that failed so, there may be an operation for all that."""


def start(
    state: ClientState, request: StartRequest, response: type | None, metadata: type | None
) -> Flow[tuple[Operation, Trace | None]]:
    """Start an operation; with a journal, what is sent is noted before, and its name after.

    Raises:
        CallError: The method refused, or may have started it for all that (UNAVAILABLE and others).
        JournalError: The journal cannot be written; nothing was sent.
    """
    trace = Trace.begin(request.target)
    headers = trace.headers() if trace else {}
    if state.journal is None or request.validate_only:
        operation = single.read((yield from single.single(state.config, request, headers)))
    else:
        request = attrs.evolve(request, request_id=request.request_id or str(uuid.uuid4()))
        entry = _entry(state, request, response, metadata)
        operation = yield from _start_noted(state, state.journal, request, entry, headers)
    log_started(operation, request.target)
    return operation, trace


def _start_noted(
    state: ClientState,
    journal: Journal,
    request: StartRequest,
    entry: Entry,
    headers: Mapping[str, str],
) -> Flow[Operation]:
    new: bool = yield RunBlocking(lambda: journal.begin(entry))
    failures: list[CallError] = []
    try:
        reply = yield from single.single(state.config, request, headers, failed=failures.append)
    except (CallError, DeclarationError):
        # A message that cannot be encoded was not sent.
        # A call that was not the first, here or in another process, may have started it.
        if new and all(exc.code not in _UNSURE for exc in failures):
            drop = functools.partial(journal.dropped, entry.request_id, within=AFTERWARDS_SECONDS)
            yield RunBlocking(functools.partial(noted, entry.request_id, drop))
        raise
    operation = single.read(reply)
    if operation.name:
        name = functools.partial(_name, journal, attrs.evolve(entry, name=operation.name))
        yield RunBlocking(functools.partial(noted, operation.name, name))
    return StartedOperation.to(entry.request_id, operation)


def _name(journal: Journal, entry: Entry) -> None:
    if not journal.named(entry.request_id, entry.name, within=AFTERWARDS_SECONDS):
        journal.begin(entry)  # the same start was made twice at once, and the other one refused


def noted(about: str, write: Callable[[], object]) -> None:
    """Write to a journal after the fact, which hides nothing that is here: never raises.

    What is not noted is found again by ``pending()``, where it starts nothing twice.
    """
    try:
        write()
    except JournalError as exc:
        log.warning("%s: not noted: %s", about, exc)


def _entry(
    state: ClientState, request: StartRequest, response: type | None, metadata: type | None
) -> Entry:
    message = request.message
    if isinstance(message, Any):
        packed = message
    elif isinstance(message, Mapping):
        packed = Any("", dict(message))
    else:
        packed = (
            state.types.pack(message)
            if state.types.knows(type(message))
            else Any("", state.types.dump(message))
        )
    return Entry(
        request_id=request.request_id,
        server=state.address,
        target=request.target,
        message=dumps(cast(Json, state.types.readable(packed).payload)).decode(),
        message_type=packed.type_url,
        response=message_name(response),
        metadata=message_name(metadata),
        started=datetime.now(UTC),
    )


def wait(
    state: ClientState, handle: HandleBase[typing.Any, typing.Any], timeout: float | None
) -> Flow[Operation]:
    """Wait until an operation is done; its last state.

    Raises:
        PollTimeout: ``timeout`` seconds are over.
        OperationGone: There is no such operation any more.
        CallError: A poll failed for a reason that does not pass.
    """
    if not handle.done:
        handle._check_there()
        try:
            with state.alone() as alone:
                waiting = _alone if alone else _with_others
                operation = yield from waiting(state, handle, timeout)
        except (CallError, PollTimeout) as exc:
            log_gave_up(handle.name, exc)
            raise
        handle._seen(operation)
    return handle.operation


def _alone(
    state: ClientState, handle: HandleBase[typing.Any, typing.Any], timeout: float | None
) -> Flow[Operation]:
    known = handle.operation
    return polling.until_done(
        state.config, handle.name, known, timeout, handle._polled, handle._fits
    )


def _with_others(
    state: ClientState, handle: HandleBase[typing.Any, typing.Any], timeout: float | None
) -> Flow[Operation]:
    clock = state.config.clock
    deadline = math.inf if timeout is None else clock() + timeout
    box = state.box()
    want = Want(deadline=deadline, fits=handle._fits)
    entry = state.table.subscribe(handle.name, box.put, want, handle.operation)
    try:
        left = None if timeout is None else max(0.0, timeout) + GRACE_SECONDS
        news = yield Receive(box, left)
    finally:
        state.table.leave(handle.name, box.put)
        handle._polled(entry.polls)
    if news is None:
        assert timeout is not None
        raise PollTimeout(handle.name, timeout, entry.polls, entry.operation, entry.failures.last)
    if isinstance(news, Unreachable):
        raise again(news.error)  # others are told of it too, each with a traceback of its own
    found: Operation = news.operation
    return found


def result(
    state: ClientState, handle: HandleBase[Resp, typing.Any], timeout: float | None
) -> Flow[Resp]:
    """Wait as :func:`wait` does, then give the response.

    Raises:
        OperationFailed: The operation ended with an error.
        OperationCancelled: It was cancelled.
        DecodingError: The response is not of the declared type.
        PollTimeout, OperationGone, CallError: As for :func:`wait`.
    """
    deadline = math.inf if timeout is None else state.config.clock() + timeout
    yield from wait(state, handle, timeout)
    return (yield from taken(state, handle, deadline))


def taken(
    state: ClientState, handle: HandleBase[Resp, typing.Any], deadline: float = math.inf
) -> Flow[Resp]:
    """The result of an operation that is over; the journal need not keep it from now on.

    A journal that others hold is not waited for beyond the ``deadline``, by the client's clock.

    Raises:
        OperationFailed, OperationCancelled: As for :func:`result`.
        DecodingError: The same; the journal keeps the operation.
    """
    try:
        found = handle._result()
    except OperationFailed:
        yield from _forget(state, handle, deadline)
        raise
    yield from _forget(state, handle, deadline)
    return found


def _forget(
    state: ClientState, handle: HandleBase[typing.Any, typing.Any], deadline: float
) -> Flow[None]:
    if state.journal is None or not handle._known_as:
        return
    left = deadline - state.config.clock()
    write = functools.partial(
        state.journal.collected,
        handle.name,
        server=state.address,
        request_id=handle._request_id,
        within=min(max(left, _FLOOR_SECONDS), AFTERWARDS_SECONDS),
    )
    yield RunBlocking(functools.partial(noted, handle._known_as, write))


def cancel(
    state: ClientState, handle: HandleBase[typing.Any, typing.Any], within: float | None = None
) -> Flow[None]:
    """Ask for the work to stop, for at most ``within`` seconds.

    Raises:
        CallError: The call failed.
    """
    handle._check_there()
    yield from single.single(state.config, CancelOperationRequest(handle.name), within=within)
    log_verb(handle.name, "CancelOperation")


def cancel_and_wait(
    state: ClientState, handle: HandleBase[typing.Any, typing.Any], timeout: float | None
) -> Flow[Operation]:
    """Ask for the work to stop, and wait until it has, or has ended before (spec §2.6).

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
    """Remove the record.

    Raises:
        CallError: The call failed.
    """
    handle._check_there()
    yield from single.single(state.config, DeleteOperationRequest(handle.name))
    log_verb(handle.name, "DeleteOperation")


def leave(
    state: ClientState,
    handles: Sequence[HandleBase[typing.Any, typing.Any]],
    seconds: float = LAST_WORD_SECONDS,
) -> Flow[None]:
    """Cancel those that are not done, in so many seconds for all of them; never raises."""
    clock = state.config.clock
    until = clock() + seconds
    running = [handle for handle in handles if not handle._over]
    for first in range(0, len(running), _CANCELS_AT_ONCE):
        some = running[first : first + _CANCELS_AT_ONCE]
        left = until - clock()
        if left <= 0:
            break
        asked = [CancelOperationRequest(handle.name) for handle in some]
        budget = min(left, state.config.call_seconds)
        found = yield Gather([Call(request=one, budget=budget) for one in asked])
        for handle, outcome in zip(some, found, strict=True):
            if isinstance(outcome, Exception):
                log_gave_up(handle.name, outcome)

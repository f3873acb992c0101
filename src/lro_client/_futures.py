"""Futures of operations: set once, by whoever hears of the end."""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import Future
from typing import Any, TypeVar

from lro_client._client_state import ClientState
from lro_client._errors import ClientError, OperationFailed, again
from lro_client._flow.threads import CALL_THREADS
from lro_client._handle_flows import AFTERWARDS_SECONDS, noted
from lro_client._handles import HandleBase
from lro_client._watch.registry import News, Seen, Unreachable, Want

Resp = TypeVar("Resp")


def blocking(state: ClientState, handle: HandleBase[Resp, Any]) -> Future[Resp]:
    """A future for threads. What waits for it is called in a lent thread: it may take its time."""
    future: Future[Resp] = Future()

    def hear(news: News) -> None:
        CALL_THREADS.give(lambda: _set(future, state, handle, news), lambda _: None)

    known = _known(handle)
    if known is not None:
        hear(known)
        return future
    state.table.subscribe(handle.name, hear, Want(fits=handle._fits), handle.operation)
    future.add_done_callback(lambda _: state.table.leave(handle.name, hear))
    return future


def awaiting(state: ClientState, handle: HandleBase[Resp, Any]) -> asyncio.Future[Resp]:
    """A future of the running event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Resp] = loop.create_future()

    def hear(news: News) -> None:
        if not (future.done() or loop.is_closed()):
            _give(future, state, handle, news)

    known = _known(handle)
    if known is not None:
        hear(known)
        return future
    state.table.subscribe(handle.name, hear, Want(fits=handle._fits), handle.operation)
    future.add_done_callback(lambda _: state.table.leave(handle.name, hear))
    return future


def _known(handle: HandleBase[Any, Any]) -> News | None:
    if handle.done:
        return Seen(handle.name, handle.operation)
    if not handle.name and handle._error is not None:
        return Unreachable(handle.name, handle._error)
    return None


def _set(
    future: Future[Resp], state: ClientState, handle: HandleBase[Resp, Any], news: News
) -> None:
    if future.set_running_or_notify_cancel():
        _give(future, state, handle, news)


def _give(
    future: Future[Resp] | asyncio.Future[Resp],
    state: ClientState,
    handle: HandleBase[Resp, Any],
    news: News,
) -> None:
    if isinstance(news, Unreachable):
        future.set_exception(again(news.error))
        return
    handle._seen(news.operation)
    owed = False
    try:
        found = handle._result()
    except ClientError as exc:
        if isinstance(exc, OperationFailed):
            owed = _owe(state, handle)
        future.set_exception(exc)
    else:
        owed = _owe(state, handle)
        future.set_result(found)
    if owed and state.journal is not None:
        # Who crashes before finds it in the journal. One thread writes for all that come meanwhile.
        settle = functools.partial(state.journal.settle, AFTERWARDS_SECONDS)
        CALL_THREADS.give(functools.partial(noted, handle._known_as, settle), lambda _: None)


def _owe(state: ClientState, handle: HandleBase[Any, Any]) -> bool:
    journal = state.journal
    if journal is None or not handle._known_as:
        return False
    return journal.owe(handle.name, server=state.address, request_id=handle._request_id)
